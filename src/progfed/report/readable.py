"""The settings of a run as people read them, from its `experiment.json`."""

from __future__ import annotations

import json
from typing import Any

from progfed.errors import printable
from progfed.runs.directory import Record

Settings = tuple[tuple[str, str], ...]
"""Names and values, both as text."""

_LONGEST_NAME, _LONGEST_VALUE = 120, 300
_SEPARATE = 6  # phases that a schedule is told by; a longer one is summed up


def readable(described: Record) -> Settings:
    """The settings of a run as pairs of a name and a value; those of the recipe by their own names.

    >>> readable({"model": {"call": "nets:cnn", "args": [], "classes": 10}, "recipe": {"type": "Recipe", "cohort": 4,
    ...     "schedule": [{"stage": 1, "rounds": 3, "warmup": False}], "local": {"type": "Local", "epochs": 2}}})
    (('model', 'cnn(classes=10)'), ('cohort', '4'), ('schedule', 'stage 1: 3 rounds'), ('local epochs', '2'))
    """
    found: dict[str, str] = {}
    for name, item in described.items():
        if name == "recipe":
            found |= _recipe(item)
        elif name not in ("type", "name", "run", "baseline"):  # the tables show these
            found[name] = _value(item)
    return tuple((clean(name), clean(text, _LONGEST_VALUE)) for name, text in found.items())


def _recipe(recipe: Record) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, item in recipe.items():
        if name == "schedule":
            found[name] = _schedule(item)
        elif name == "local":
            found |= {f"local {own}": _value(value) for own, value in item.items() if own != "type"}
        elif name not in ("type", "seed"):  # every seed is listed with its folder
            found[name] = _value(item)
    return found


def _schedule(phases: list[Record]) -> str:
    """The rounds of each phase; where there are many phases, only the rounds of each stage."""
    if len(phases) > _SEPARATE:
        stages: dict[int, int] = {}
        for phase in phases:
            stages[phase["stage"]] = stages.get(phase["stage"], 0) + int(phase["rounds"])
        told = ", ".join(f"stage {stage}: {_rounds(stages[stage])}" for stage in sorted(stages))
        return f"{told}, in {len(phases)} phases"
    return ", ".join(_phase(phase) for phase in phases)


def _phase(phase: Record) -> str:
    blocks, heads = (", ".join(map(str, phase.get(key, ()))) for key in ("trains", "heads"))
    more = [
        "warm-up" if phase["warmup"] else "",
        "rate held" if phase.get("hold") else "",
        f"training E {blocks}" if blocks else "",
        f"heads {heads}" if heads else "",
    ]
    told = ", ".join(one for one in more if one)
    return f"stage {phase['stage']}: {_rounds(phase['rounds'])}{f' ({told})' if told else ''}"


def _rounds(number: int) -> str:
    return "1 round" if number == 1 else f"{number} rounds"


def _value(item: Any) -> str:
    """A described value, as it would be written in Python: `Restart(rate=Cosine(lr=0.03))`."""
    if isinstance(item, list):
        return f"({', '.join(map(_value, item))})"
    if isinstance(item, dict):
        named = dict(item)
        name = next((_value(named.pop(key)) for key in ("call", "type", "data", "model") if key in named), "")
        inside = [_value(argument) for argument in named.pop("args", [])]
        inside += [f"{key}={_value(value)}" for key, value in named.items()]
        return f"{name}({', '.join(inside)})" if inside else name
    if isinstance(item, str):
        return item.rsplit(":", 1)[-1]  # functions and classes are described by `module:name`
    return json.dumps(item)


def clean(text: Any, longest: int = _LONGEST_NAME) -> str:
    """Text from a file made safe to show: one line of printable characters, not longer than `longest`."""
    if not isinstance(text, str):
        raise TypeError(f"a name must be text, not {text!r:.40}")
    return printable(text)[:longest]
