"""The loop of Algorithm 1, as a generator of rounds.

Evaluating, logging, checkpointing and progress bars are consumers of this generator, not callbacks inside it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from progfed import rng, server
from progfed.blocks import Progressive
from progfed.codec import Schema
from progfed.errors import MessageError, TrainingError, UsageError
from progfed.flops import PhaseCost, phase_cost
from progfed.protocol import DOWN, UP, Cost, Engine, Envelope, Task, Update, seal, unseal
from progfed.rate import Moment
from progfed.recipe import Recipe
from progfed.schedule import Phase, Schedule, length
from progfed.tensors import Tensors, add, mean, of_parts


@dataclass(frozen=True)
class Progress:
    """Everything that a run needs to go on after a round: the tensors, the server's state, and the costs so far."""

    round: int = 0
    params: Tensors = field(default_factory=dict)
    state: server.State = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Round:
    """What happened in a round; `progress` is where the run stands after it, and holds M^stage as trained so far."""

    number: int
    phase: Phase
    lr: float
    loss: float
    clients: int
    rejected: dict[str, int]
    cost: Cost
    progress: Progress


@dataclass(frozen=True)
class Turn:
    """A round to come: its number, its phase, whether it opens the phase, and how many rounds of it went before."""

    number: int
    phase: Phase
    index: int
    offset: int
    moment: Moment


def turns(schedule: Schedule) -> Iterator[Turn]:
    """The rounds of a schedule, numbered from 1 with warm-up included."""
    number, done, total = 0, 0, length(schedule)
    for index, phase in enumerate(schedule):
        for offset in range(phase.rounds):
            number += 1
            moment = Moment(done, total, offset, phase.rounds, phase.warmup)
            yield Turn(number, phase, index, offset, moment)
            done += not phase.warmup


def federate(
    model: Progressive,
    sizes: Sequence[int],
    recipe: Recipe,
    engine: Engine,
    *,
    run: str = "0" * 16,
    start: Progress | None = None,
) -> Iterator[Round]:
    """Train `model` on clients that hold `sizes[i]` examples each, continuing after `start` where it is given."""
    model.check(recipe.schedule)
    if not 1 <= recipe.cohort <= len(sizes):
        raise UsageError(
            f"a cohort of {recipe.cohort} clients cannot be drawn from {len(sizes)}: use 1 to {len(sizes)}"
        )
    progress = start or Progress()
    costs: dict[Phase, PhaseCost] = {}
    for turn in turns(recipe.schedule):
        if turn.number <= progress.round:
            continue
        began, phase = time.perf_counter(), turn.phase
        if turn.offset == 0:
            progress = grow(progress, model, recipe, turn.index)
        if phase not in costs:
            costs = {phase: phase_cost(model, phase)}

        # send x_t^s to a fresh cohort; the message is made once, whoever it goes to
        lr = recipe.rate(turn.moment)
        cohort = rng.sample(len(sizes), recipe.cohort, recipe.seed, "sample", turn.number)
        sent = of_parts(progress.params, model.parts(phase))
        envelope = Envelope(DOWN, run, turn.number, phase.stage)
        message = seal(envelope, sent, recipe.down, rng.number(recipe.seed, "down", turn.number))
        updates = engine([Task(client, turn.number, phase, lr, message) for client in cohort])

        # x_{t+1} = x_t + server(mean of the clients' changes)
        inbox = Inbox(cohort, sizes, costs[phase].up, recipe, Envelope(UP, run, turn.number, phase.stage))
        delta = mean(inbox.open(updates))
        inbox.check(turn.number)
        params, state = apply(progress, delta, recipe, costs[phase].buffers)

        cost = Cost(
            down_bytes=len(message) * len(cohort),
            up_bytes=inbox.up_bytes,
            paper_bytes=paper_bytes(turn, costs[phase], recipe) * len(cohort),
            flops=costs[phase].flops * inbox.examples * recipe.local.epochs,
            seconds=time.perf_counter() - began,
        )
        progress = Progress(turn.number, params, state, progress.cost + cost)
        yield Round(turn.number, phase, lr, inbox.loss, inbox.valid, dict(inbox.rejected), cost, progress)


def grow(progress: Progress, model: Progressive, recipe: Recipe, index: int) -> Progress:
    """Enter phase `index`: make the parts it needs and lacks, and discard those that no later phase uses."""
    needed = {part for phase in recipe.schedule[index:] for part in model.parts(phase)}
    params = of_parts(progress.params, needed)
    present = {name.split(".", 1)[0] for name in params}
    new = [part for part in model.parts(recipe.schedule[index]) if part not in present]
    for part in new:
        params |= model.init(part, seed=recipe.seed)
    state = progress.state
    if new or params.keys() != progress.params.keys():
        state = server.grow(recipe.server, state, params)
    return Progress(progress.round, params, state, progress.cost)


def apply(progress: Progress, delta: Tensors, recipe: Recipe, buffers: frozenset[str]) -> tuple[Tensors, server.State]:
    """Let the server optimizer take its step; buffers such as BatchNorm statistics are averaged as they are."""
    learned = {name: value for name, value in delta.items() if name not in buffers}
    step, state = recipe.server.update(learned, progress.state)
    averaged = {name: value for name, value in delta.items() if name in buffers}
    return add(progress.params, {**step, **averaged}), state


def paper_bytes(turn: Turn, cost: PhaseCost, recipe: Recipe) -> int:
    """One client's round in the published accounting: 4 bytes a parameter times the codec's nominal rate, uplink only.

    In the k-th warm-up round the published code bills k copies of the new layers; so does this column.
    """
    copies = turn.offset + 1 if turn.phase.warmup else 1
    return round(4 * recipe.up.rate * copies * cost.trained_parameters)


class Inbox:
    """Opens the updates of a round in the order of the cohort, whatever order they come in, and counts the rejected."""

    def __init__(
        self, cohort: Sequence[int], sizes: Sequence[int], schema: Schema, recipe: Recipe, expected: Envelope
    ) -> None:
        self._cohort, self._sizes, self._schema, self._recipe, self._expected = cohort, sizes, schema, recipe, expected
        self._why = ""
        self._losses = 0.0
        self.rejected: Counter[str] = Counter()
        self.up_bytes = self.examples = self.valid = 0

    def open(self, updates: Iterable[Update]) -> Iterator[tuple[float, Tensors]]:
        """Weights and changes of the valid updates; an update that comes early waits, so that sums keep their order."""
        waiting: dict[int, Update] = {}
        seen: set[int] = set()
        turn = 0
        for update in updates:
            self.up_bytes += len(update.message)
            if update.client not in self._cohort or update.client in seen:
                self._reject(MessageError("unexpected", f"client {update.client} was not asked, or answered before"))
                continue
            seen.add(update.client)
            waiting[update.client] = update
            while turn < len(self._cohort) and self._cohort[turn] in waiting:
                yield from self._open(waiting.pop(self._cohort[turn]))
                turn += 1
        for client in sorted(waiting):
            yield from self._open(waiting[client])
        if missing := len(self._cohort) - len(seen):
            self.rejected["missing"] += missing

    def _open(self, update: Update) -> Iterator[tuple[float, Tensors]]:
        expected = Envelope(
            UP,
            self._expected.run,
            self._expected.round,
            self._expected.stage,
            update.client,
            self._sizes[update.client],
        )
        try:
            found, change = unseal(update.message, expected, self._schema, self._recipe.up)
        except MessageError as error:
            self._reject(error)
            return
        self.valid += 1
        self.examples += found.examples
        self._losses += found.loss * found.examples
        yield (found.examples if self._recipe.weighting == "examples" else 1.0), change

    def _reject(self, error: MessageError) -> None:
        self.rejected[error.reason] += 1
        self._why = self._why or str(error)

    @property
    def loss(self) -> float:
        """The mean loss over the examples of the valid updates."""
        return self._losses / max(self.examples, 1)

    def check(self, number: int) -> None:
        """Stop where too few updates were valid: an average of garbage is worse than none."""
        if self.valid < self._recipe.min_updates:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
            hint = "; lower the learning rate" if self.rejected["not finite"] else ""
            raise TrainingError(
                f"round {number}: {self.valid} of {len(self._cohort)} updates were valid, "
                f"{self._recipe.min_updates} needed "
                f"({reasons}; first: {self._why or 'no reply'}){hint}"
            )
