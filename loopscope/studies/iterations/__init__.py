"""Five iterated functions in words."""
