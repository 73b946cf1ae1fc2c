"""What holds for every codec: shapes, sizes, determinism, finite results, and nothing but `MessageError`."""

from __future__ import annotations

import random
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from progfed import rng
from progfed.codec import codec, numel, schema_of
from progfed.errors import MessageError
from progfed.tensors import Tensors, finite

LOSSY = (
    *("bf16", "LQ-8", "LQ-4", "LQ-2", "LQ-1", "LQ-4@8", "LQ-2@1024"),
    *("SP-25", "SP-10", "SP-33", "SP-99", "RAND-25", "TOP-10", "TOP-1", "TOP-60", "ROT"),
    *("LQ-8+SP-25", "LQ-8+SP-10", "LQ-2+SP-30", "LQ-4@16+SP-25", "SP-25+LQ-8", "SP-30+LQ-4@8", "bf16+SP-25"),
    *("LQ-8+TOP-10", "TOP-10+LQ-4", "ROT+LQ-4", "ROT+LQ-2+SP-25", "SP-25+ROT+LQ-1", "ROT+TOP-10"),
    *("DQ-0.1", "DQ-1.5", "DQ-6", "DQ-0.2bit", "DQ-1bit", "DQ-8bit", "EDEN-1"),
)
EVERY = ("float", "fp16", *LOSSY)

shapes = st.sampled_from([(), (0,), (0, 3), (1,), (2,), (3, 3), (2, 1, 5), (31,), (64,), (4, 100), (1025,)])
magnitudes = st.floats(min_value=-1.0000000150474662e30, max_value=1.0000000150474662e30, width=32)


@st.composite
def tensor(draw: st.DrawFn) -> torch.Tensor:
    """Constants, denormals, huge numbers, a few given numbers over and over, or noise of any scale."""
    shape = draw(shapes)
    match draw(st.sampled_from(("constant", "given", "noise"))):
        case "constant":
            return torch.full(shape, draw(magnitudes))
        case "given":
            numbers = torch.tensor(draw(st.lists(magnitudes, min_size=1, max_size=5)))
            return numbers.repeat(2000)[: numel({"": shape})].reshape(shape)
        case _:
            noise = torch.randn(shape, generator=rng.generator(draw(st.integers(0, 99)), "noise"))
            return noise * 10.0 ** draw(st.integers(-44, 29))


messages = st.lists(tensor(), max_size=4).map(lambda values: {f"E{i}.w": value for i, value in enumerate(values)})
keys = st.integers(0, 2**63 - 1)


def through(name: str, tensors: Tensors, key: int = 0) -> Tensors:
    chosen = codec(name)
    return chosen.decode(memoryview(chosen.encode(tensors, key)), schema_of(tensors))


@pytest.mark.parametrize("name", ["float", *LOSSY])
@settings(max_examples=15, deadline=None)
@given(message=messages, key=keys)
def test_names_shapes_and_dtype_come_back_finite_and_the_size_is_as_promised(
    name: str, message: Tensors, key: int
) -> None:
    chosen = codec(name)
    before = {name: value.clone() for name, value in message.items()}
    data = chosen.encode(message, key)
    schema = schema_of(message)
    assert isinstance(data, bytes)
    assert len(data) <= chosen.size(schema)
    assert chosen.estimate(schema) <= chosen.size(schema)
    if chosen.exact:
        assert len(data) == chosen.estimate(schema) == chosen.size(schema)
    back = chosen.decode(memoryview(data), schema)
    assert schema_of(back) == schema
    assert list(back) == list(schema)
    assert {value.dtype for value in back.values()} <= {torch.float32}
    assert finite(back)
    assert all(torch.equal(value, message[name]) for name, value in before.items())


@pytest.mark.parametrize("name", EVERY)
def test_bytes_depend_on_the_key_and_nothing_else(name: str) -> None:
    message = {"b": torch.randn(50, 7, generator=rng.generator(0)), "a": torch.randn(90, generator=rng.generator(1))}
    first = codec(name).encode(message, 5)
    torch.rand(3)
    assert codec(name).encode(dict(reversed(message.items())), 5) == first
    drawn = any(part.startswith(("LQ", "SP", "RAND", "ROT", "DQ", "EDEN")) for part in name.split("+"))
    assert (codec(name).encode(message, 6) != first) == drawn


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("LQ-2", "0000a0c00000ec4000000050555455545595a99595966aaaaaaaaafffbeabafefe"),
        ("SP-10", "8f7faf4f1aea855b0000a0c0000070c0000008c0000000be0000903f0000e03f00004040000098400000a0400000e840"),
        ("ROT+LQ-1", "a3c8930e5130654d00402ec10080fa40d7d5cf6ffe9e99b375f1a9c404"),
        (
            "DQ-4",
            "0200007341b70dfbfaad89406700000000030300000006ac0b0099cb0828390425000a7c6a00e54002cdfc97",
        ),
        ("EDEN-1", "a3c8930e5130654d9901444099b3aa40c6455e5f661acbbb9de3f35e04"),
    ],
)
def test_the_bytes_of_a_key_never_change(name: str, expected: str) -> None:
    ramp = {"w": torch.arange(-40, 60, dtype=torch.float32) / 8}
    assert codec(name).encode(ramp, 1).hex() == expected


@pytest.mark.parametrize("name", LOSSY)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 2e31])
def test_numbers_that_are_not_finite_are_refused_even_where_a_mask_would_hide_them(name: str, bad: float) -> None:
    message = {"E1.w": torch.ones(30), "E2.w": torch.ones(40)}
    message["E2.w"][17] = bad
    for key in range(5):
        with pytest.raises(MessageError, match=r"tensor E2\.w"):
            codec(name).encode(message, key)


@pytest.mark.parametrize("name", EVERY)
def test_a_body_of_another_length_is_refused(name: str) -> None:
    message = {"a": torch.randn(100, generator=rng.generator(0)), "b": torch.tensor(2.0)}
    chosen, schema = codec(name), schema_of(message)
    data = chosen.encode(message, 0)
    for wrong in (b"", data[:-1], data + b"\0", data * 2, data[:8]):
        with pytest.raises(MessageError):
            chosen.decode(memoryview(wrong), schema)


@pytest.mark.parametrize("name", ["fp16", *LOSSY])
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(0, 40))
def test_mutated_bytes_are_refused_or_decode_to_finite_tensors_of_the_schema(name: str, seed: int, flips: int) -> None:
    message = {"a": torch.randn(300, generator=rng.generator(0)), "b": torch.tensor(2.0), "c": torch.ones(7)}
    chosen, schema, dice = codec(name), schema_of(message), random.Random(seed)
    data = bytearray(chosen.encode(message, 0))
    if flips == 0:
        data[:] = dice.randbytes(len(data))
    for _ in range(flips):
        data[dice.choice((dice.randrange(len(data)), dice.randrange(min(40, len(data)))))] = dice.randrange(256)
    try:
        back = chosen.decode(memoryview(data), schema)
    except MessageError:
        return
    assert schema_of(back) == schema
    assert finite(back)


@pytest.mark.parametrize("name", EVERY)
def test_decoding_takes_memory_in_proportion_to_the_schema_whatever_the_bytes(name: str) -> None:
    schema = {"a": (200, 500), "b": (1000,)}
    chosen, dice = codec(name), random.Random(1)
    for data in (dice.randbytes(chosen.size(schema)), b"\xff" * chosen.size(schema), b"\0" * 7):
        tracemalloc.start()
        try:
            chosen.decode(memoryview(data), schema)
        except MessageError:
            pass
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 32 * numel(schema) + 2**20


@pytest.mark.parametrize("name", EVERY)
def test_gradients_memory_formats_and_other_dtypes_are_taken_as_float32_in_logical_order(name: str) -> None:
    plain = {"w": torch.randn(4, 3, 5, 5, generator=rng.generator(0))}
    striped = {"w": plain["w"].to(memory_format=torch.channels_last).requires_grad_()}
    assert codec(name).encode(striped, 1) == codec(name).encode(plain, 1)
    if name != "float":
        assert codec(name).encode({"w": plain["w"].double()}, 1) == codec(name).encode(plain, 1)


@pytest.mark.parametrize("name", EVERY)
def test_no_tensors_are_a_message_too(name: str) -> None:
    assert through(name, {}) == {}
