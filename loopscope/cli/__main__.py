"""`python -m loopscope.cli` is the `loopscope` command."""

from loopscope.cli import main

main()
