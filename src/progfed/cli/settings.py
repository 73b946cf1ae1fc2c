"""Changing an experiment from the command line: `--set key=value`, `--rounds`, `--warmup`, `--seed`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from progfed.errors import UsageError, did_you_mean
from progfed.recipe.rate import top_rate, with_top_rate
from progfed.runs.experiment import Experiment
from progfed.schedule import rescale, with_warmup

_TOP_RATE = "recipe.rate.lr"
"""The learning rate, whatever its shape; where stages have rates of their own, that of the full model."""
_NAMED = (
    "up",
    "down",
    "bytes",
    "server",
    "aggregate",
    "growth",
    "method",
)  # known by name or import path
_PATHS = ("recipe.schedule", "recipe.rate")  # and import paths for these
_OR_NONE = {"clip": 1.0, "steps": 1}  # of local training: these may be none, or numbers of this kind
_IDENTITY = ("name", "run", "baseline", "clients", "examples")  # what an experiment is called is not a setting


def scaled(experiment: Experiment, *, rounds: int | None, warmup: int | None, seed: int | None) -> Experiment:
    """The same experiment with other rounds, warm-up or seed; stage lengths and warm-up keep their proportions."""
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
    matches = [path for path in known if f".{path}".endswith(f".{key}")]
    if _TOP_RATE in matches or key in matches:
        matches = [_TOP_RATE if _TOP_RATE in matches else key]
    if len(matches) == 1:
        return _changed(experiment, matches[0], _parsed(known[matches[0]], matches[0], text))
    if matches:
        raise UsageError(f"--set {key} could mean {' or '.join(matches)}: give more of the path")
    hint = did_you_mean(key, [*known, *(path.split(".")[-1] for path in known)])
    raise UsageError(f"--set has no key {key!r}: {hint}known keys are {', '.join(known)}")


def settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that can be changed, with their present values, by dotted path."""
    found, rate = _leaves(experiment, ""), top_rate(experiment.recipe.rate)
    return found if rate is None else found | {_TOP_RATE: rate}


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(value):
        path, item = f"{prefix}{field.name}", getattr(value, field.name)
        readable = field.name in (*_NAMED, *_OR_NONE) or isinstance(item, bool | int | float | str)
        if (readable or path in _PATHS) and path not in _IDENTITY:
            found[path] = item
        if is_dataclass(item) and field.name in ("recipe", "rate", "local", "privacy", "growth", "method"):
            found |= _leaves(item, f"{path}.")
        if field.name == "rates":
            for place, one in enumerate(item):
                found |= _leaves(one, f"{path}.{place}.") if is_dataclass(one) else {}
    return found


def _parsed(now: Any, path: str, text: str) -> Any:
    leaf = path.split(".")[-1]
    if leaf in _NAMED or path in _PATHS:
        return text
    if leaf in _OR_NONE and path.endswith(f"local.{leaf}"):
        if text == "none":
            return None
        now = _OR_NONE[leaf]
    if isinstance(now, bool):
        if text not in ("true", "false"):
            raise UsageError(f"--set {path} takes true or false, not {text!r}")
        return text == "true"
    try:
        return type(now)(text)
    except ValueError as error:
        raise UsageError(f"--set {path} takes a value like {now!r}, not {text!r}") from error


def _changed(experiment: Experiment, path: str, new: Any) -> Experiment:
    if path == _TOP_RATE:
        recipe = experiment.recipe
        return replace(experiment, recipe=replace(recipe, rate=with_top_rate(recipe.rate, new)))
    changed: Experiment = _replaced(experiment, path.split("."), new)
    return changed


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    """A value with the item at a path replaced; a number in the path is a place in a tuple."""
    name, *below = path
    if isinstance(value, tuple):
        place = int(name)
        return (*value[:place], _replaced(value[place], below, new), *value[place + 1 :])
    return replace(value, **{name: _replaced(getattr(value, name), below, new) if below else new})
