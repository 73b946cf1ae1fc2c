"""How long a round would take on the clients' own devices, whatever machine simulates them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from progfed.costs import Costs
from progfed.population import FederatedData
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.wire.engine import Engine, Task, Update


@dataclass
class _Visit:
    """What one client was asked in a round, and what crossed."""

    phase: Phase
    down: int = 0
    up: int = 0
    answered: bool = False


class Clock:
    """An engine that passes on tasks and updates as they are, and notes their lengths to tell the time of a round.

    Args:
        engine: Where clients really train.
        data: The population, with a device for each client.
        recipe: Who is drawn, how often they go through their examples, and how long they are waited for.
        costs: What the phases of the model cost.
    """

    def __init__(self, engine: Engine, data: FederatedData, recipe: Recipe, costs: Costs) -> None:
        self.client_states = engine.client_states
        self._engine, self._data, self._recipe, self._costs = engine, data, recipe, costs
        self._round = 0
        self._visits: dict[int, _Visit] = {}

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        for task in tasks:
            if task.round != self._round:
                self._round, self._visits = task.round, {}
            # who asked for the whole model is asked once more in the same round, and has not answered yet
            visit = self._visits.setdefault(task.client, _Visit(task.phase))
            visit.down, visit.answered = visit.down + len(task.message), False
        for update in self._engine(tasks):
            asked = self._visits.get(update.client)
            if asked is not None and not asked.answered:
                asked.up, asked.answered = asked.up + len(update.message), True
            yield update

    def seconds(self, *, used: int, surplus: int) -> float:
        """The seconds of the last round: those of the slowest client whose answer was needed.

        Clients are needed in the order in which they are drawn, until the cohort is full: the last of those that
        answered are not. For a client that is needed and does not answer, the server waits until the deadline, where
        there is one. No client is late for being slow here, as no update was refused for it.

        Args:
            used: How many updates of the round were used.
            surplus: How many clients answered and were not needed.
        """
        drawn = self._recipe.draw(self._data.clients, self._round)
        answered = [client for client in drawn if self._visits[client].answered]
        needed = answered[: len(answered) - surplus]
        waited = drawn[: drawn.index(needed[-1])] if used == self._recipe.cohort else drawn
        slowest = max(map(self._client_seconds, needed), default=0.0)
        late = not all(self._visits[client].answered for client in waited) and self._recipe.deadline < math.inf
        return max(slowest, self._recipe.deadline) if late else slowest

    def _client_seconds(self, client: int) -> float:
        visit = self._visits[client]
        flops = self._costs.phase(visit.phase).flops * self._recipe.local.seen(self._data.sizes[client])
        return self._data.devices[client].seconds(down=visit.down, up=visit.up, flops=flops)
