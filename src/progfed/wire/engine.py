"""What the server and the places where clients train say to each other: tasks out, updates back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from progfed.schedule import Phase
from progfed.tensors import Tensors

ClientState = dict[str, Tensors]
"""What a client keeps from round to round, where a recipe asks for it: `held`, the model; `lost`, by its codec;
`velocity`, its momentum; `private`, the tensors of the model that never leave it; and what its method keeps, under
names of the method's own."""

OWN_KINDS = ("held", "lost", "velocity", "private")
"""Names that mean the same for every method."""


@dataclass(frozen=True)
class Task:
    """One client's work in one round. `message` is the same object for every client of a round.

    `bits` are those that a number takes on its way down and up, where the server chooses them for each round.
    """

    client: int
    round: int
    phase: Phase
    lr: float
    message: bytes
    bits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Update:
    """A client's reply: the message that crossed. Whether it is any good is the server's to judge."""

    client: int
    message: bytes


class Engine(Protocol):
    """Where clients run: tasks in, updates out, in any order, each as soon as it is there; a lost client gives none.

    `client_states` is what clients on this machine keep from round to round; it belongs in the checkpoint. It stays
    empty where clients keep their own.
    """

    client_states: dict[int, ClientState]

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]: ...
