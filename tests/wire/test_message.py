"""Messages: exact, deterministic, and refused for one named reason when anything about them is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from progfed.codec import Float, schema_of
from progfed.errors import MessageError
from progfed.wire.message import DOWN, OVERHEAD, UP, Envelope, message_size, seal, unseal

RUN = "0123456789abcdef"
TENSORS = {"E1.w": torch.arange(6.0).view(2, 3), "E1.b": torch.tensor(0.5), "G1.w": torch.zeros(0, 4)}
SENT = Envelope(UP, RUN, round=7, stage=2, client=5, examples=12, loss=0.25)
EXPECTED = replace(SENT, examples=100, loss=0.0)
SCHEMA = schema_of(TENSORS)


def message() -> bytes:
    return seal(SENT, TENSORS, Float(), 0)


def test_what_was_sealed_comes_back_with_names_shapes_and_bits() -> None:
    found, tensors = unseal(message(), EXPECTED, SCHEMA, Float())
    assert found == SENT
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


def test_the_size_is_known_before_and_the_bytes_are_the_same_twice() -> None:
    assert len(message()) == message_size(Float(), SCHEMA) == OVERHEAD + 4 * 7
    assert message() == message()
    shuffled = {name: TENSORS[name] for name in reversed(TENSORS)}
    assert seal(SENT, shuffled, Float(), 0) == message()


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        (replace(EXPECTED, kind=DOWN), "kind"),
        (replace(EXPECTED, run_id="f" * 16), "run"),
        (replace(EXPECTED, round=8), "round"),
        (replace(EXPECTED, stage=1), "stage"),
        (replace(EXPECTED, client=4), "client"),
        (replace(EXPECTED, examples=11), "examples"),
    ],
)
def test_a_message_for_something_else_is_refused_for_that_reason(expected: Envelope, reason: str) -> None:
    with pytest.raises(MessageError) as caught:
        unseal(message(), expected, SCHEMA, Float())
    assert caught.value.reason == reason


def test_another_schema_codec_or_version_is_refused() -> None:
    other = {**SCHEMA, "E1.w": (3, 2)}
    with pytest.raises(MessageError, match="schema"):
        unseal(message(), EXPECTED, other, Float())
    with pytest.raises(MessageError, match="codec"):
        unseal(message(), EXPECTED, SCHEMA, Float(name="other"))
    newer = message()[:4] + b"\x09\x00" + message()[6:]
    with pytest.raises(MessageError, match="version"):
        unseal(newer, EXPECTED, SCHEMA, Float())


@pytest.mark.parametrize("examples", [0, 101, 2**40])
def test_claimed_example_counts_outside_the_possible_are_refused(examples: int) -> None:
    lying = seal(replace(SENT, examples=examples), TENSORS, Float(), 0)
    with pytest.raises(MessageError, match="examples"):
        unseal(lying, EXPECTED, SCHEMA, Float())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    poisoned = {**TENSORS, "E1.b": torch.tensor(bad)}
    with pytest.raises(MessageError, match="not finite"):
        unseal(seal(SENT, poisoned, Float(), 0), EXPECTED, SCHEMA, Float())
    with pytest.raises(MessageError, match="not finite"):
        unseal(seal(replace(SENT, loss=bad), TENSORS, Float(), 0), EXPECTED, SCHEMA, Float())


@settings(max_examples=400)
@given(st.data())
def test_a_changed_message_never_opens(data: st.DataObject) -> None:
    changed = bytearray(message())
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(changed) - 1))
        changed[position] = data.draw(st.integers(0, 255))
    if bytes(changed) == message():
        return
    with pytest.raises(MessageError):
        unseal(bytes(changed), EXPECTED, SCHEMA, Float())


@given(st.integers(0, OVERHEAD + 40), st.binary(max_size=20))
def test_a_truncated_or_extended_message_never_opens(cut: int, tail: bytes) -> None:
    changed = message()[:cut] + tail
    if changed == message():
        return
    with pytest.raises(MessageError):
        unseal(changed, EXPECTED, SCHEMA, Float())


def test_five_thousand_mutated_messages_are_all_refused() -> None:
    draw = np.random.default_rng(0)
    original = np.frombuffer(message(), np.uint8)
    for _ in range(5000):
        changed = original.copy()
        position = draw.integers(len(changed))
        changed[position] ^= draw.integers(1, 256)
        with pytest.raises(MessageError):
            unseal(changed.tobytes(), EXPECTED, SCHEMA, Float())
