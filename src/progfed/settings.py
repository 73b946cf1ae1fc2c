"""Changing an experiment from the command line: `--set key=value`, `--rounds`, `--warmup`, `--seed`."""

from __future__ import annotations

import difflib
from dataclasses import fields, is_dataclass, replace
from typing import Any

from progfed import aggregate, growth, server
from progfed.codec import codec
from progfed.errors import UsageError
from progfed.experiment import Experiment
from progfed.schedule import rescale, with_warmup

SERVERS = {
    "fedavg": server.fedavg,
    "fedavgm": server.fedavgm,
    "fedadam": server.fedadam,
    "fedyogi": server.fedyogi,
    "fedadagrad": server.fedadagrad,
}
_IDENTITY = ("name", "run", "baseline", "clients", "examples")  # what an experiment is called is not a setting


def scaled(experiment: Experiment, *, rounds: int | None, warmup: int | None, seed: int | None) -> Experiment:
    """The same experiment over other rounds (stage lengths and warm-up in proportion), warm-up or seed."""
    recipe = experiment.recipe
    if rounds is not None:
        recipe = replace(recipe, schedule=rescale(recipe.schedule, rounds))
    if warmup is not None:
        recipe = replace(recipe, schedule=with_warmup(recipe.schedule, warmup))
    if seed is not None:
        recipe = replace(recipe, seed=seed)
    return replace(experiment, recipe=recipe)


def override(experiment: Experiment, setting: str) -> Experiment:
    """Apply one `key=value`; a key is a dotted path, or its end where that is unique: `local.epochs`, `epochs`."""
    key, equals, text = setting.partition("=")
    if not equals:
        raise UsageError(f"--set takes key=value, not {setting!r}")
    known = settings(experiment)
    matches = [path for path in known if path == key] or [path for path in known if path.endswith(f".{key}")]
    if len(matches) == 1:
        path = matches[0]
        changed: Experiment = _replaced(experiment, path.split("."), _parsed(known[path], path, text))
        return changed
    if matches:
        raise UsageError(f"--set {key} could mean {' or '.join(matches)}: give more of the path")
    near = difflib.get_close_matches(key, [*known, *(path.split(".")[-1] for path in known)], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(dict.fromkeys(near))}? " if near else ""
    raise UsageError(f"--set has no key {key!r}: {hint}known keys are {', '.join(known)}")


def settings(experiment: Experiment) -> dict[str, Any]:
    """What can be set, with its present value, by dotted path."""
    return _leaves(experiment, "")


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(value):
        path, item = f"{prefix}{field.name}", getattr(value, field.name)
        named = field.name in ("up", "down", "server", "aggregate", "growth")
        if (named or isinstance(item, bool | int | float | str)) and path not in _IDENTITY:
            found[path] = item
        if is_dataclass(item) and field.name in ("recipe", "rate", "local", "privacy", "growth"):
            found |= _leaves(item, f"{path}.")
    return found


def _parsed(now: Any, path: str, text: str) -> Any:
    leaf = path.split(".")[-1]
    if leaf in ("up", "down"):
        return codec(text)
    if leaf == "server":
        if text not in SERVERS:
            raise UsageError(f"--set {path} takes one of {', '.join(SERVERS)}, not {text!r}")
        return SERVERS[text]()
    if leaf == "aggregate":
        if text not in aggregate.NAMED:
            raise UsageError(f"--set {path} takes one of {', '.join(aggregate.NAMED)}, not {text!r}")
        return aggregate.NAMED[text]
    if leaf == "growth":
        if text not in growth.NAMED:
            raise UsageError(f"--set {path} takes one of {', '.join(growth.NAMED)}, not {text!r}")
        return growth.NAMED[text]
    if isinstance(now, bool):
        if text not in ("true", "false"):
            raise UsageError(f"--set {path} takes true or false, not {text!r}")
        return text == "true"
    try:
        return type(now)(text)
    except ValueError as error:
        raise UsageError(f"--set {path} takes a value like {now!r}, not {text!r}") from error


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    if len(path) > 1:
        new = _replaced(getattr(value, path[0]), path[1:], new)
    return replace(value, **{path[0]: new})
