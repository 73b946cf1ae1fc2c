from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from progfed import rng
from progfed.codec import Chain, Dither, Eden, Fitted, Float, Half, Quantize, Rotate, Sparsify, Top, codec, schema_of
from progfed.errors import UsageError
from progfed.tensors import Tensors


def message() -> Tensors:
    draw = rng.generator(0)
    return {"a": torch.randn(40, 30, generator=draw), "b": torch.randn(77, generator=draw) * 100, "c": torch.ones(())}


def through(name: str, tensors: Tensors, key: int = 9) -> Tensors:
    chosen = codec(name)
    return chosen.decode(memoryview(chosen.encode(tensors, key)), schema_of(tensors))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("LQ-8", "SP-25"),
        ("LQ-2", "SP-33"),
        ("LQ-4@16", "SP-10"),
        ("LQ-8", "TOP-10"),
        ("fp16", "SP-25"),
        ("bf16", "TOP-1"),
    ],
)
def test_a_chain_does_to_tensors_what_its_steps_do_one_after_the_other(first: str, second: str) -> None:
    one_by_one = through(second, through(first, message()))
    chained = through(f"{first}+{second}", message())
    for name, value in chained.items():
        assert torch.equal(value, one_by_one[name])


def test_masking_first_spans_the_levels_over_the_kept_numbers_only() -> None:
    values = torch.linspace(0, 1, 1000)
    values[::2] = 50.0
    for key in range(4):
        kept = through("SP-1", {"w": values}, key)["w"] / 100
        kept = kept[kept > 0]
        first, last = (codec(name).encode({"w": values}, key) for name in ("LQ-8+SP-1", "SP-1+LQ-8"))
        assert len(first) == len(last) == 8 + 8 + 10
        np.testing.assert_array_equal(np.frombuffer(first[:8], "<f4"), [values.min(), values.max()])
        np.testing.assert_array_equal(np.frombuffer(last[8:16], "<f4"), [kept.min(), kept.max()])


def test_rate_is_the_nominal_share_of_four_bytes_a_parameter() -> None:
    rates = {
        "float": 1,
        "bf16": 1 / 2,
        "LQ-8": 1 / 4,
        "LQ-2": 1 / 16,
        "SP-25": 1 / 4,
        "LQ-8+SP-25": 1 / 16,
        "ROT+LQ-4": 1 / 8,
    }
    assert {name: codec(name).rate for name in rates} == rates
    assert codec("EDEN-1").rate == 1 / 32
    steps = [0.25, 1, 1.5, 2, 3, 4]
    bits = [round(32 * codec(f"DQ-{step}").rate, 2) for step in steps]
    assert bits == sorted(bits, reverse=True)
    assert dict(zip(steps, bits, strict=True))[1.5] == 1.54


def test_names_are_read_in_either_case_and_printed_in_one() -> None:
    values = {
        "float": Float(),
        "fp16": Half("fp16"),
        "bf16": Half("bf16"),
        "LQ-8": Quantize(8),
        "LQ-1": Quantize(1),
        "LQ-4@1024": Quantize(4, chunk=1024),
        "SP-25": Sparsify(25),
        "RAND-10": Sparsify(10, rescale=False),
        "TOP-10": Top(10),
        "ROT": Rotate(),
        "LQ-8+SP-25": Chain((Quantize(8), Sparsify(25))),
        "SP-25+LQ-8": Chain((Sparsify(25), Quantize(8))),
        "DQ-1.5": Dither(1.5),
        "DQ-10": Dither(10),
        "DQ-0.7bit": Fitted(0.7),
        "EDEN-1": Eden(),
        "ROT+LQ-2+TOP-5": Chain((Rotate(), Quantize(2), Top(5))),
    }
    for name, value in values.items():
        assert codec(name) == codec(name.lower()) == codec(name.upper()) == value
        assert value.name == name
        assert hash(value) == hash(codec(name))


@pytest.mark.parametrize(
    "name",
    [
        *("", "LQ", "LQ-3", "LQ-16", "LQ-8+", "+", "SP-0", "SP-100", "TOP-10@8", "zip", "LQ-8 SP-25", "LQ-4@7"),
        *("DQ", "DQ-0", "DQ-0.09", "DQ-11", "DQ-1.2345", "DQ--1", "EDEN", "EDEN-2"),
    ],
)
def test_an_unknown_name_is_one_error_that_lists_what_there_is(name: str) -> None:
    with pytest.raises(UsageError, match=r"no codec is called .* LQ-8, LQ-4, LQ-2, LQ-1 .* LQ-8\+SP-25"):
        codec(name)


@pytest.mark.parametrize("name", ["LQ-8+LQ-4", "LQ-8+fp16", "SP-25+TOP-10", "ROT+ROT", "LQ-8+ROT", "bf16+SP-25+ROT"])
def test_chains_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"two steps of one kind|already coded"):
        codec(name)
    with pytest.raises(UsageError, match="at least one step"):
        Chain(())


@pytest.mark.parametrize("name", ["ROT+DQ-1.5", "DQ-1.5+SP-25", "DQ-1+DQ-2", "EDEN-1+TOP-10", "ROT+EDEN-1"])
def test_codecs_of_a_whole_message_are_no_steps_of_a_chain(name: str) -> None:
    with pytest.raises(UsageError, match=r"(DQ-1|DQ-1\.5|EDEN-1) codes a whole message by itself"):
        codec(name)


def test_codecs_are_values_that_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Quantize(8).bits = 4  # type: ignore[misc]
    assert repr(codec("LQ-8+SP-25")) == (
        "Chain(steps=(Quantize(bits=8, chunk=None), Sparsify(percent=25, rescale=True)))"
    )


@pytest.mark.parametrize(
    "name", ["LQ-8+SP-25", "LQ-2+SP-10", "SP-25+LQ-8", "SP-33+LQ-2", "ROT+LQ-8+SP-25", "SP-25+ROT+LQ-4"]
)
def test_a_chain_of_unbiased_steps_is_unbiased(name: str) -> None:
    values, trials = torch.rand(37, generator=rng.generator(0)).double() * 2 - 1, 400
    draws = torch.stack([through(name, {"w": values.float()}, key)["w"].double() for key in range(trials)])
    # the mean of each number, and that of the projection on the input, where a wrong scale would show first
    for drawn, truth in ((draws, values), (draws @ values / values.dot(values), torch.tensor(1.0))):
        error = drawn.std(0) / math.sqrt(trials)
        assert bool(((drawn.mean(0) - truth).abs() <= 5 * error + 1e-6).all())
