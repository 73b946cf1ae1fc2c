"""What the commands print: JSON for machines, and text from elsewhere made fit for a terminal."""

from __future__ import annotations

import json


def print_json(value: object) -> None:
    """Print a value as indented JSON on standard output."""
    print(json.dumps(value, indent=2))


def printable(text: str) -> str:
    """Text on one line and without control characters: a name or an error of a client must not steer a terminal.

    >>> printable("two\\nlines, and \\x1b[31mred")
    'two lines, and �[31mred'
    """
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)
