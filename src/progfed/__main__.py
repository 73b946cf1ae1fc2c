"""`python -m progfed` is the same as `progfed`."""

from progfed.cli import main

main()
