"""`python -m baton.cli` is `baton`, for an environment whose scripts are not on the path."""

from baton.cli.app import main

main()
