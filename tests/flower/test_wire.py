"""What is packed is what is unpacked, and Flower counts the bytes that the protocol counts."""

from __future__ import annotations

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from progfed.errors import MessageError
from progfed.flower.wire import (
    MOST,
    opaque,
    pack_hosted,
    pack_task,
    pack_update,
    unpack_hosted,
    unpack_task,
    unpack_update,
)
from progfed.schedule import Phase
from progfed.wire.engine import Task, Update

numbers = st.integers(0, 2**53)
lists = st.lists(st.integers(1, 9), max_size=3).map(tuple)
phases = st.builds(
    Phase, stage=st.integers(1, 9), rounds=st.integers(1, 10**6), trains=lists, heads=lists, warmup=st.booleans()
)
rates = st.floats(allow_nan=False, allow_infinity=False)
bits = st.none() | st.tuples(st.floats(0.2, 8), st.floats(0.2, 8))
tasks = st.builds(
    Task, client=numbers, round=numbers, phase=phases, lr=rates, message=st.binary(max_size=99), bits=bits
)


@given(tasks)
def test_a_task_is_unpacked_as_it_was_packed(task: Task) -> None:
    assert unpack_task(pack_task(task)) == task


@given(numbers, st.binary(max_size=99))
def test_an_update_is_unpacked_as_it_was_packed(client: int, message: bytes) -> None:
    assert unpack_update(pack_update(Update(client, message))) == Update(client, message)


@given(st.dictionaries(numbers, st.integers(1, MOST)))
def test_what_a_node_holds_is_unpacked_as_it_was_packed(sizes: dict[int, int]) -> None:
    assert unpack_hosted(pack_hosted(sizes)) == sizes


@given(tasks)
def test_flower_counts_the_payload_that_the_protocol_counts(task: Task) -> None:
    for packed, message in (
        (pack_task(task), task.message),
        (pack_update(Update(task.client, task.message)), task.message),
    ):
        (record,) = packed.array_records.values()
        assert record.count_bytes() - sum(len(key) for key in record) == len(message)
        assert sum(len(array.data) for array in record.values()) == len(message)
        assert sum(fields.count_bytes() for fields in packed.config_records.values()) < 200


@given(tasks)
def test_a_message_is_one_array(task: Task) -> None:
    (record,) = pack_task(task).array_records.values()
    assert [array.stype for array in record.values()] == ["progfed.v1"]


@pytest.mark.parametrize(
    "content",
    [
        RecordDict(),
        RecordDict({"progfed.bytes": ArrayRecord({"message": opaque(b"x")})}),
        RecordDict({"progfed.fields": ConfigRecord({"client": 1})}),
        RecordDict({"progfed.bytes": ArrayRecord(), "progfed.fields": ConfigRecord({"client": 1})}),
        RecordDict(
            {
                "progfed.bytes": ArrayRecord({"message": opaque(b"x")}),
                "progfed.fields": ConfigRecord({"client": "one"}),
            }
        ),
        RecordDict(
            {
                "progfed.bytes": ArrayRecord([torch.zeros(2).numpy()]),
                "progfed.fields": ConfigRecord({"client": 1}),
            }
        ),
    ],
    ids=["nothing", "no fields", "no bytes", "no array", "a client that is no number", "someone else's array"],
)
def test_what_is_no_message_is_refused_with_a_reason(content: RecordDict) -> None:
    for unpack in (unpack_task, unpack_update):
        with pytest.raises(MessageError):
            unpack(content)


@pytest.mark.parametrize(
    "said",
    [
        *('{"0": 0}', '{"0": -5}', '{"0": 9223372036854775808}', '{"0": 1e3}', '{"0": true}', '{"-1": 5}', '{"a": 5}'),
        *("[1]", "[" * 10**5, "[" * 10**6, '{"0": ' + "9" * 10**4 + "}", " " * 10**7 + '{"0": 5}', "", 3),
    ],
    ids=lambda said: str(said)[:20],
)
def test_impossible_numbers_of_examples_are_refused(said: str) -> None:
    with pytest.raises(MessageError):
        unpack_hosted(RecordDict({"progfed.fields": ConfigRecord({"sizes": said})}))
