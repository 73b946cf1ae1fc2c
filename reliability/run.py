"""`make chaos`: every trial at its large count, one line each, bounded in time; exit code 1 if any promise broke."""

from __future__ import annotations

import argparse
import sys

from progfed.cli import main as command_line
from reliability import deployment
from reliability.mutations import NAME, survivors
from reliability.rows import perform, rows


def main() -> None:
    """Run the chosen rows; `--list` names them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--seconds", type=float, default=480, help="the most that a row may take where it can be cut")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="the counts of the self-test")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    known = (*rows(command_line), *deployment.ROWS)
    chosen = tuple(r for r in known if not options.only or any(part in r.name for part in options.only))
    if options.list:
        print(*(row.name for row in known), NAME, sep="\n")
        return
    failed = False
    for outcome in perform(chosen, large=not options.small, seed=options.seed, seconds=options.seconds):
        print(outcome.line(), flush=True)
        failed |= bool(outcome.failure)
    if not options.only or any(part in NAME for part in options.only):
        failed |= bool(survivors())
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
