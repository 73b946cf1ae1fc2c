"""Asynchronous rounds with a buffer (FedBuff, Nguyen et al., 2022): who is out, with which model, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral

from progfed.errors import UsageError
from progfed.tensors import Tensors


@dataclass(frozen=True)
class Buffered:
    """The server takes a step whenever `size` updates have come, and does not wait for slower clients.

    A round is one such step. All the time `cohort` clients train; who comes back is replaced by a client that has
    nothing to do, with the newest model. When each comes back is told by the devices of the population, not by the
    machine that simulates them. An update that began `lag` steps ago counts (1 + lag)^-power.

    Args:
        size: How many updates make a step: 1 to the cohort.
        power: How little old updates count; 0: as much as new ones.
    """

    size: int = 10
    power: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.size, Integral) or self.size < 1:
            raise UsageError(f"a buffer holds a whole number of 1 or more updates, not {self.size}")
        if not 0 <= self.power < float("inf"):
            raise UsageError(f"the power of a buffer is a finite number of 0 or more, not {self.power}")

    def weight(self, lag: int) -> float:
        """What an update counts whose model is `lag` steps old.

        >>> Buffered().weight(0), Buffered().weight(3)
        (1.0, 0.5)
        """
        return float((1 + lag) ** -self.power)


@dataclass(frozen=True)
class Flight:
    """A client that trains the model of round `version`, and comes back when the clock shows `ends`."""

    client: int
    version: int
    ends: float


@dataclass(frozen=True)
class Aloft:
    """Who is out: `flights`, the models that they train by version, and the clock in seconds."""

    now: float = 0.0
    flights: tuple[Flight, ...] = ()
    models: dict[int, Tensors] = field(default_factory=dict)

    @property
    def clients(self) -> list[int]:
        """Who is out, in increasing order."""
        return sorted(flight.client for flight in self.flights)

    def with_model(self, version: int, model: Tensors) -> Aloft:
        """With the model that clients train who leave now."""
        return replace(self, models={**self.models, version: model})

    def first(self, number: int) -> tuple[Flight, ...]:
        """Those who come back next, in the order in which their updates are summed: by version and client."""
        soonest = sorted(self.flights, key=lambda flight: (flight.ends, flight.client))[:number]
        return tuple(sorted(soonest, key=lambda flight: (flight.version, flight.client)))

    def landed(self, back: Iterable[Flight]) -> Aloft:
        """Without those who came back; the clock shows when the last of them did."""
        gone = set(back)
        left = tuple(flight for flight in self.flights if flight not in gone)
        versions = {flight.version for flight in left}
        now = max([self.now, *(flight.ends for flight in gone)])
        return Aloft(now, left, {version: model for version, model in self.models.items() if version in versions})

    def called_back(self) -> Aloft:
        """Nobody is out: what they train is no longer wanted."""
        return replace(self, flights=(), models={})
