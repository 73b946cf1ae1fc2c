"""A round as a value: what was asked of whom, what happened, and where the run stands after it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from progfed.blocks import Progressive
from progfed.codec import Schema
from progfed.costs import Cost, Costs, PhaseCost
from progfed.costs.published import cohort_bytes
from progfed.recipe import optimizers
from progfed.recipe.buffered import Aloft
from progfed.recipe.growth import Watch
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import Turn, ending
from progfed.schedule import Phase, within
from progfed.server.replies import Summary
from progfed.server.step import grown
from progfed.tensors import Tensors, part


@dataclass(frozen=True)
class Progress:
    """Everything that a run needs to go on after a round: the tensors, the server's state, and the costs so far.

    `held` is the model that clients hold, where they are sent changes of it; it lags by what the codec has lost.
    `watch` is what decides when to grow, where the schedule alone does not. `aloft` is who trains which model, where
    rounds are asynchronous.
    """

    round: int = 0
    params: Tensors = field(default_factory=dict)
    state: optimizers.State = field(default_factory=dict)
    held: Tensors = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    watch: Watch = field(default_factory=Watch)
    aloft: Aloft = field(default_factory=Aloft)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What happened in a round; `progress` is where the run stands after it, and holds M^stage as trained so far.

    `surplus` reserves answered and were not needed; `epsilon` is the privacy spent so far, where any is promised.
    `closes` tells the last round of a phase, `freed` how many rounds of its budget the phase then left; `signal` is
    what the growth policy looks at. `device_seconds` is how long an asynchronous round lasts on the clients' devices.
    """

    number: int
    phase: Phase
    lr: float
    loss: float
    clients: int
    rejected: dict[str, int]
    cost: Cost
    progress: Progress
    surplus: int
    epsilon: float | None
    closes: bool
    freed: int
    signal: float | None
    device_seconds: float | None = None


@dataclass(frozen=True)
class Asked:
    """Who trains which sub-model in a round: `depths` and `phases` by client, and what each of the phases costs."""

    depths: dict[int, int]
    phases: dict[int, Phase]
    kinds: dict[Phase, PhaseCost]

    @property
    def down(self) -> dict[Phase, Schema]:
        """What a message to a client holds, by sub-model."""
        return {phase: kind.down for phase, kind in self.kinds.items()}

    @property
    def up(self) -> dict[Phase, Schema]:
        """What an update holds, by sub-model."""
        return {phase: kind.up for phase, kind in self.kinds.items()}

    @property
    def buffers(self) -> frozenset[str]:
        """Names that no optimizer touches, such as BatchNorm's statistics."""
        return frozenset[str]().union(*(kind.buffers for kind in self.kinds.values()))


def ask(phase: Phase, clients: Sequence[int], deepest: Sequence[int], costs: Costs) -> Asked:
    """Let each of the clients train M^stage, or the largest sub-model that it can."""
    depths = {client: deepest[client] if deepest else costs.model.stages for client in clients}
    phases = {client: within(phase, depth) for client, depth in depths.items()}
    return Asked(depths, phases, {one: costs.phase(one) for one in dict.fromkeys(phases.values())})


def grow(progress: Progress, model: Progressive, recipe: Recipe, index: int, deepest: Sequence[int] = ()) -> Progress:
    """Enter phase `index`: make the parts it needs and lacks, and discard those that no later phase uses.

    The head of a weak client's sub-model is used in every phase that is too deep for it, so it stays.
    """
    depths = sorted({*deepest, model.stages}, reverse=True)
    unused = {part(name) for name in progress.params}
    for phase in recipe.schedule[index:]:
        unused.difference_update(used(model, phase, depths))
        if not unused:  # nearly always at once: a schedule may have as many phases as rounds
            break
    params = {name: value for name, value in progress.params.items() if part(name) not in unused}
    present = {part(name) for name in params}
    for new in [name for name in used(model, recipe.schedule[index], depths) if name not in present]:
        made = model.init(new, seed=recipe.seed)
        params |= {name: value for name, value in made.items() if not recipe.method.private(name)}
    state = progress.state
    warmed = recipe.server.reset and index > 0 and recipe.schedule[index - 1].warmup
    if params.keys() != progress.params.keys() or warmed:
        state = grown(recipe, state, params)
    return replace(progress, params=params, state=state)


def used(model: Progressive, phase: Phase, depths: Iterable[int]) -> dict[str, None]:
    """The parts that a phase uses on clients that can train these depths, each once and in order."""
    return dict.fromkeys(name for depth in depths for name in model.parts(within(phase, depth)))


def conclude(
    progress: Progress,
    turn: Turn,
    summary: Summary,
    *,
    params: Tensors,
    state: optimizers.State,
    recipe: Recipe,
    costs: Costs,
    asked: Asked,
    clients: int,
    lr: float,
    down_bytes: int,
    began: float,
    held: Tensors | None = None,
) -> Round:
    """The round as a value: what it has cost, whether it was the last of its phase, and where the run stands.

    Args:
        progress: Where the run stood before.
        turn: Which round it is.
        summary: What came back.
        params: The parameters after the server's step.
        state: Its state after the step.
        recipe: How the run is trained.
        costs: What the phases cost.
        asked: Who was asked for what, the cohort before its reserves.
        clients: The size of the population.
        lr: The learning rate.
        down_bytes: The length of what was sent to clients.
        began: When the round began, by `time.perf_counter`.
        held: The model that clients hold from now on, where they are sent changes.
    """
    learned = {name: value for name, value in params.items() if name not in asked.buffers}
    end = ending(turn, recipe, progress.watch, loss=summary.loss, before=progress.params, after=learned)
    used = list(asked.depths.values())[: recipe.cohort]
    cost = Cost(
        down_bytes=down_bytes + summary.asked_down,
        up_bytes=summary.up_bytes + summary.asked_up,
        paper_bytes=cohort_bytes(recipe, turn, used, closes=end.closes, costs=costs),
        flops=sum(costs.phase(own).flops * number for own, number in summary.trained.items()),
        seconds=time.perf_counter() - began,
    )
    after = replace(
        progress,
        round=turn.number,
        params=params,
        state=state,
        held=held or {},
        cost=progress.cost + cost,
        watch=end.watch,
    )
    return Round(
        number=turn.number,
        phase=turn.phase,
        lr=lr,
        loss=summary.loss,
        clients=summary.clients,
        rejected=summary.rejected,
        surplus=summary.surplus,
        epsilon=recipe.spent(turn.number, clients),
        closes=end.closes,
        freed=end.freed,
        signal=end.signal,
        cost=cost,
        progress=after,
    )
