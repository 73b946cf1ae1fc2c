"""Codecs by name: what an experiment stores and a message carries."""

from __future__ import annotations

import re

from progfed.by_path import by_path, is_path
from progfed.codec.base import Codec, Float
from progfed.codec.chain import Chain
from progfed.codec.dither import Dither
from progfed.codec.eden import Eden
from progfed.codec.fitted import Fitted
from progfed.codec.half import Half
from progfed.codec.quantize import Quantize
from progfed.codec.rotate import Rotate
from progfed.codec.sparsify import Sparsify, Top
from progfed.codec.step import Step
from progfed.errors import UsageError

NAMES = """\
float; fp16, bf16; LQ-8, LQ-4, LQ-2, LQ-1 (quantized, a range per tensor; LQ-4@1024: per 1024 numbers); \
SP-25, SP-10, any SP-1 to SP-99 (random mask, rescaled); RAND-25 (not rescaled, for error feedback); \
TOP-10 (largest magnitudes); ROT (random rotation); and chains of these in the order of encoding, \
such as LQ-8+SP-25 or ROT+LQ-4; alone: DQ-1.5, any DQ-0.1 to DQ-10 (one step for the whole message, in root mean \
squares of its numbers; entropy-coded), DQ-0.7bit (the same with the step that fits into so many bits a number, 0.2 to \
8) and EDEN-1 (one bit, of fixed length); your own as module:name(3)"""

_STEP = re.compile(r"(?P<kind>LQ|SP|RAND|TOP)-(?P<number>\d{1,2})(?:@(?P<chunk>\d{1,9}))?|(?P<plain>ROT|FP16|BF16)")
_ALONE = re.compile(r"DQ-(?P<step>\d{1,2}(?:\.\d{1,3})?)(?P<bits>BIT)?|EDEN-1")


def codec(name: str) -> Codec:
    """The codec of a name, in upper or lower case.

    Args:
        name: Such as `"float"`, `"LQ-8"`, or several steps as in `"LQ-8+SP-25"`; see docs/compression.md. A codec or
            a step of one's own is named by its import path, as in `"mycodecs:Sign"` or `"mycodecs:Keep(3)+LQ-8"`.

    >>> codec("lq-8+sp-25").name, codec("LQ-8+SP-25").rate
    ('LQ-8+SP-25', 0.0625)
    """
    if name.lower() == "float":
        return Float()
    if is_path(name):
        found: Codec = by_path(name)
        return found
    parts = [part if ":" in part else part.upper() for part in re.split(r"\+(?![^(]*\))", name)]
    alone = [match for part in parts if (match := _ALONE.fullmatch(part))]
    if alone and len(parts) > 1:
        raise UsageError(f"codec {name}: {alone[0][0]} codes a whole message by itself; use it without other steps")
    if alone:
        return _alone(alone[0], name)
    steps = tuple(_step(part, name) for part in parts)
    return steps[0] if len(steps) == 1 else Chain(steps)


def _alone(match: re.Match[str], name: str) -> Codec:
    if not match["step"]:
        return Eden()
    try:
        return (Fitted if match["bits"] else Dither)(float(match["step"]))
    except UsageError as error:
        raise UsageError(f"no codec is called {name!r}: {error}; there are {NAMES}") from None


def _step(part: str, name: str) -> Step:
    if is_path(part):
        own: Step = by_path(part)  # `Chain` refuses what is no step
        return own
    match = _STEP.fullmatch(part)
    if match is None or (match["chunk"] and match["kind"] != "LQ"):
        raise UsageError(f"no codec is called {name!r}; there are {NAMES}")
    if match["plain"]:
        return Rotate() if part == "ROT" else Half(part.lower())
    kind, number = match["kind"], int(match["number"])
    try:
        if kind == "LQ":
            return Quantize(number, chunk=int(match["chunk"]) if match["chunk"] else None)
        return Top(number) if kind == "TOP" else Sparsify(number, rescale=kind == "SP")
    except UsageError as error:
        raise UsageError(f"no codec is called {name!r}: {error}; there are {NAMES}") from None
