"""Several Flower commands in one process, one per line of standard input: each start of `flwr` takes seconds.

Imports nothing of progfed, so that it can be run by its path, without torch.
"""

from __future__ import annotations

import shlex
import sys


def main() -> None:
    """Run the commands until one fails."""
    from flwr.cli.app import app  # here, as its options warn about themselves when they are made

    for line in sys.stdin:
        app(shlex.split(line), standalone_mode=False)


if __name__ == "__main__":
    main()
