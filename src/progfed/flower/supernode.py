"""Flower's SuperNode with shorter waits: `python -m progfed.flower.supernode …`.

All options are those of `flower-supernode`, and `flower-supernode` can be used instead: it is only slower.

Two waits make up most of a round of a small model: a SuperNode with nothing to do sleeps 3 s, and whoever fetches a
message whose content is still on its way tries again after 1 s. Both are constants of Flower, without a setting. They
are shortened here, in the processes that progfed starts; nothing else about Flower is changed.

This file imports nothing of progfed, so that it can be run by its path: a SuperNode needs no torch in its memory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from flwr.app import Array
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
)

POLL = "PROGFED_NODE_POLL"
"""The variable of the environment that says how many seconds a node may sleep."""
AGAIN = 0.05
"""Seconds until content that is still on its way is asked for again, doubled each time as Flower does."""
AT_LAST = 1.0
"""Seconds to which that grows: 10 with Flower."""


def hasten_content() -> None:
    """Ask more often for content that is still on its way."""
    for function in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        defaults = function.__kwdefaults__
        if defaults and "initial_backoff" in defaults:
            defaults["initial_backoff"] = min(AGAIN, defaults["initial_backoff"])
            defaults["backoff_cap"] = min(AT_LAST, defaults["backoff_cap"])


def bound_content(seconds: float) -> None:
    """Wait at most this long for content that was announced; Flower would wait for two hours."""
    defaults = inflatable_utils.pull_objects.__kwdefaults__
    if defaults and "max_time" in defaults:
        defaults["max_time"] = seconds


def limit_content(most: int) -> None:
    """Let the replies that the server app of this process fetches have at most so many bytes.

    A node can announce and send anything. What is too long is not fetched to its end, nor put together where it names
    one piece again and again: `OverflowError` is raised as soon as that is known.
    """
    from flwr.superlink.grid import http_grid

    refusal = f"a reply of more than the {most:,} bytes that it can need"

    def limited(object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any) -> dict[str, bytes]:
        left = [most]  # a list, so that all threads count down the same

        def pull(name: str) -> bytes:
            content = pull_object_fn(name)
            left[0] -= len(name) + len(content)
            if left[0] < 0:
                raise OverflowError(refusal)
            return content

        return inflatable_utils.pull_objects(object_ids, pull, **options)

    class Limited(Array):
        @classmethod
        def inflate(cls, object_content: bytes, children: dict[str, Any] | None = None) -> Array:
            names = get_object_children_ids_from_object_content(object_content)
            pieces = json.loads(get_object_body(object_content, Array))["arraychunk_ids"]
            if sum(len((children or {})[names[piece]].data) for piece in pieces) > most:
                raise OverflowError(refusal)
            return Array.inflate(object_content, children)

    setattr(http_grid, "pull_objects", limited)  # noqa: B010 the name is Flower's import, not part of its interface
    inflatable_utils.inflatable_class_registry[Array.__qualname__] = Limited


def hasten_node(longest: float) -> None:
    """Let the SuperNode of this process sleep at most this many seconds."""
    from flwr.supernode import start_client_internal as loop

    shorter = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, longest)))
    setattr(loop, "time", shorter)  # noqa: B010 the name is Flower's import, not part of its interface


def main() -> None:
    """Run the SuperNode with its sleeps cut to `PROGFED_NODE_POLL` seconds."""
    from flwr.supernode.cli import flower_supernode

    hasten_node(float(os.environ.get(POLL, "0.2")))
    hasten_content()
    flower_supernode()


if __name__ == "__main__":
    main()
