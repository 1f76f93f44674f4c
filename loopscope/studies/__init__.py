"""The paper: what it measured, the claims, the report.  Nothing outside `studies` and `cli` imports this."""
