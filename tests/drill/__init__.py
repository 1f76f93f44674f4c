"""The drill: bad inputs and faults by class, and what the command line may answer to each of them.

`python -m tests.drill` runs everything and prints a table; `--class NAME` and `--case ID` run a part, `--json FILE`
writes every outcome.  `docs/reliability.md` says what the numbers mean.
"""
