"""What a recipe understands for a value: its name, or the import path of a user's own, `module:name(3)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from progfed.by_path import by_path, is_path
from progfed.codec import Codec, codec
from progfed.errors import UsageError
from progfed.recipe import aggregate as aggregates
from progfed.recipe import growth as policies
from progfed.recipe import methods
from progfed.recipe import optimizers as servers
from progfed.recipe.rate import as_rate
from progfed.schedule import Schedule


def _named(setting: str, known: dict[str, Any], *methods: str) -> Callable[[Any], Any]:
    """A function that reads a setting: a known name stands for its value, and any value must have these methods."""

    def understand(value: Any) -> Any:
        if isinstance(value, str) and value in known:
            return known[value]
        value = _imported(value)
        fits = all(hasattr(value, method) for method in methods) or (value is None and None in known.values())
        if isinstance(value, str | type) or not fits:
            raise UsageError(
                f"{setting} takes one of {', '.join(known)}, or your own as module:name, not {value!r:.60}"
            )
        return value

    return understand


def _imported(value: Any) -> Any:
    """What an import path stands for; any other value as it is."""
    return by_path(value) if is_path(value) else value


def _codec(value: Any) -> Codec:
    """A codec as it is; a name becomes the codec of that name."""
    if isinstance(value, str):
        value = codec(value)
    if isinstance(value, type) or not hasattr(value, "encode"):
        raise UsageError(
            f"up and down take codecs such as Quantize(8), or their names such as 'LQ-8', not {value!r:.60}"
        )
    return value  # type: ignore[no-any-return]


def _share(value: Any) -> float | None:
    """A share as a number; `"2%"` stands for 0.02."""
    if value is None or isinstance(value, float | int):
        return None if value is None else float(value)
    text, percent = str(value).strip().removesuffix("%"), str(value).strip().endswith("%")
    try:
        return float(text) / 100 if percent else float(text)
    except ValueError:
        raise UsageError(f"bytes takes a share of end-to-end training's, such as 0.02 or 2%, not {value!r}") from None


def _rate(value: Any) -> Any:
    return as_rate(_imported(value))


def _schedule(value: Any) -> Schedule:
    return _imported(value)  # type: ignore[no-any-return]


SHORT_FORMS: dict[str, Callable[[Any], Any]] = {
    "schedule": _schedule,
    "rate": _rate,
    "up": _codec,
    "down": _codec,
    "bytes": _share,
    "server": _named("server", servers.NAMED, "init", "update"),
    "aggregate": _named("aggregate", aggregates.NAMED, "__call__"),
    "method": _named("method", methods.NAMED, "train", "down", "up", "private", "init", "update", "scores", "codec"),
    "growth": _named("growth", policies.NAMED, "see", "ends", "shortest", "keep_total", "reads_loss"),
}
