"""What clients keep from round to round is read as it was written, whichever way it was written."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed.errors import MessageError
from progfed.wire.engine import ClientState
from progfed.wire.state import from_arrays, from_tables, pack, to_arrays, to_tables, unpack


@given(st.dictionaries(st.sampled_from(["held", "lost"]), st.dictionaries(st.text(min_size=1), st.integers(0, 3))))
def test_a_state_is_unpacked_as_it_was_packed(kinds: dict[str, dict[str, int]]) -> None:
    state = {kind: {name: torch.randn(size, 2) for name, size in names.items()} for kind, names in kinds.items()}
    again = unpack(pack(state))
    assert again.keys() == state.keys()
    for kind, tensors in state.items():
        assert again[kind].keys() == tensors.keys()
        assert all(torch.equal(again[kind][name], value) for name, value in tensors.items())


def test_the_states_of_all_clients_are_read_from_the_tables_of_a_checkpoint() -> None:
    one = {"w": torch.tensor([1.0])}
    states: dict[int, ClientState] = {7: {"lost": one, "velocity": one}, 2: {"lost": one, "own": {"a/b": one["w"]}}}
    tables = to_tables(states)
    assert {name: list(table) for name, table in tables.items()} == {
        "lost": ["7/w", "2/w"],
        "velocity": ["7/w"],
        "memories": ["2/own/a/b"],
    }
    assert from_tables(tables) == states
    assert from_arrays(to_arrays(states[2])) == states[2]
    assert to_tables({3: {"held": one}}) == {"lost": {}}  # models that clients hold are the server's to keep


@pytest.mark.parametrize("damaged", [b"", b"garbage", bytes(8) + b"{}", b"\xff" * 40])
def test_a_damaged_state_is_refused(damaged: bytes) -> None:
    with pytest.raises(MessageError, match="memory"):
        unpack(damaged)
