"""How the benchmark talks to a variant: one JSON line when it is ready, then one for each round that it is asked for.

Every variant stays alive while its workload is measured, so that rounds of all variants can take turns.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def converse(one: Callable[[], dict[str, Any]], variant: str) -> None:
    """Run a round for each line that comes in, and answer with what it took."""
    answer({"ready": variant})
    for _ in sys.stdin:
        answer({"variant": variant, **one()})


def answer(value: dict[str, Any]) -> None:
    """One line of JSON, at once."""
    print("@" + json.dumps(value), flush=True)
