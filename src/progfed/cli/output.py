"""What the commands print for machines."""

from __future__ import annotations

import json


def print_json(value: object) -> None:
    """Print a value as indented JSON on standard output."""
    print(json.dumps(value, indent=2))
