"""What clients keep from round to round, written down: the one place that knows how.

On a node's disk a client's state is one safetensors file with names such as `lost/E1.weight`. A checkpoint has the
states of all clients as a few tables of tensors, with names such as `7/E1.weight`. To a worker process on this machine
it crosses as plain arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from progfed.errors import MessageError
from progfed.tensors import Tensors, grouped, prefixed
from progfed.wire.engine import ClientState

Arrays = dict[str, dict[str, Any]]

_OWN_TABLE = ("lost", "velocity")
_OTHERS = "memories"
"""The table of a checkpoint for what an engine of one's own keeps under other names."""


def pack(state: ClientState) -> bytes:
    """One client's state as bytes; the same state gives the same bytes."""
    flat = prefixed(state)
    return save({key: flat[key].detach().contiguous() for key in sorted(flat)}, {"kinds": json.dumps(sorted(state))})


def unpack(data: bytes) -> ClientState:
    """The state that `pack` packed; raises `MessageError` where the bytes are damaged."""
    try:
        length = int.from_bytes(data[:8], "little")
        kinds = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["kinds"])
        found = grouped(load(data))
        if not found.keys() <= set(kinds):
            raise ValueError(f"tensors of {sorted(found)}, where {kinds} are declared")
        return {kind: found.get(kind, {}) for kind in kinds}
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise MessageError("memory", f"the state of a client that cannot be read: {error}") from error


def to_arrays(state: ClientState) -> Arrays:
    """One client's state for a pipe: as tensors each would take a file handle, and packed a sixth of the speed."""
    return {kind: {name: value.numpy() for name, value in tensors.items()} for kind, tensors in state.items()}


def from_arrays(arrays: Arrays) -> ClientState:
    """The state that `to_arrays` was given."""
    return {kind: {name: torch.from_numpy(value) for name, value in kept.items()} for kind, kept in arrays.items()}


def to_tables(states: Mapping[int, ClientState]) -> dict[str, Tensors]:
    """The states of all clients as the tables of a checkpoint, without the models that they hold.

    `lost` is always there; the others only where a client has any of it.
    """
    tables = {
        kind: prefixed({client: state[kind] for client, state in states.items() if kind in state})
        for kind in _OWN_TABLE
    }
    others = {
        client: prefixed({kind: kept for kind, kept in state.items() if kind not in ("held", *_OWN_TABLE)})
        for client, state in states.items()
    }
    tables[_OTHERS] = prefixed(others)
    return {name: table for name, table in tables.items() if table or name == "lost"}


def from_tables(tables: Mapping[str, Tensors]) -> dict[int, ClientState]:
    """The states that `to_tables` wrote down; tables that are none of clients are passed over."""
    states: dict[int, ClientState] = {}
    for kind in _OWN_TABLE:
        for client, kept in grouped(tables.get(kind, {})).items():
            states.setdefault(int(client), {})[kind] = kept
    for client, others in grouped(tables.get(_OTHERS, {})).items():
        states.setdefault(int(client), {}).update(grouped(others))
    return states
