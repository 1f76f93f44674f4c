"""Does J select what a backbone has learned, or does it create?  A question of ours."""
