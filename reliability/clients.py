"""Clients that fail or attack: engines that stand between the server and honest clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from progfed import rng
from progfed.blocks import Progressive
from progfed.codec import Schema
from progfed.costs.phase import phase_cost
from progfed.engines.local import LocalEngine
from progfed.errors import MessageError, TrainingError
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.server.loop import Round, federate
from progfed.tensors import Tensors
from progfed.wire.engine import ClientState, Engine, Task, Update
from progfed.wire.message import UP, Envelope, model_digest, seal, unseal
from reliability import expect
from reliability.cases import plain
from reliability.hostile import CODECS, REJECTED, target

RUN = "0" * 16


@dataclass
class Unreliable:
    """An engine some of whose clients do not answer: each is lost with this chance, the same ones for the same seed.

    With a `deadline` every client takes a time drawn for it, exponentially distributed with mean 1, and who takes
    longer is lost: lateness without a clock, so that it repeats.
    """

    engine: Engine
    drop: float = 0.0
    deadline: float = float("inf")
    seed: int = 0

    def __post_init__(self) -> None:
        self.client_states: dict[int, ClientState] = self.engine.client_states

    def answers(self, round: int, client: int) -> bool:
        """Whether this client is heard of in this round."""
        draw = rng.numpy_generator(self.seed, "unreliable", round, client)
        return bool(draw.uniform() >= self.drop and draw.exponential() <= self.deadline)

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        yield from self.engine([task for task in tasks if self.answers(task.round, task.client)])


@dataclass
class Poisoned:
    """An engine some of whose clients send something else than what they learned: valid messages, bad content."""

    engine: Engine
    attackers: Collection[int]
    attack: Callable[[Tensors], Tensors]
    model: Progressive
    recipe: Recipe
    run_id: str = RUN

    def __post_init__(self) -> None:
        self.client_states: dict[int, ClientState] = self.engine.client_states
        self._schemas: dict[Phase, Schema] = {}

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        asked = {task.client: task for task in tasks}
        for update in self.engine(tasks):
            attacking = update.client in self.attackers
            yield self._spoiled(update, asked[update.client]) if attacking else update

    def _spoiled(self, update: Update, task: Task) -> Update:
        expected = Envelope(UP, self.run_id, task.round, task.phase.stage, task.client, 2**62)
        try:
            found, change = unseal(update.message, expected, self._schema(task.phase), self.recipe.up)
        except MessageError:  # its own training has failed: nothing left to make worse
            return update
        return replace(update, message=seal(found, self.attack(change), self.recipe.up, 0))

    def _schema(self, phase: Phase) -> Schema:
        if phase not in self._schemas:
            self._schemas[phase] = phase_cost(self.model, phase).up
        return self._schemas[phase]


def scaled(factor: float) -> Callable[[Tensors], Tensors]:
    """An attack that multiplies the update: by a negative number it undoes what the others learn."""
    return lambda change: {name: factor * value for name, value in change.items()}


def dropouts(rate: float, *, seed: int = 0) -> list[Round]:
    """Train while clients drop out at this rate, with 1.3 times the cohort asked; the rounds, checked."""
    made = plain(cohort=3, over_selection=1.3, min_updates=1, seed=seed).experiment
    model, data, recipe = made.make_model(), made.data, made.recipe
    assert not callable(data)
    done: list[Round] = []
    with LocalEngine(model, data, recipe) as engine:
        flaky = Unreliable(engine, drop=rate, seed=seed)
        try:
            for round_ in federate(model, data.sizes, recipe, flaky):
                _check(round_, flaky, recipe, data.clients)
                done.append(round_)
        except TrainingError as error:  # nobody at all answered: a clear end, not a hang
            lost = len(done) + 1
            asked = recipe.draw(data.clients, lost)
            expect(not any(flaky.answers(lost, client) for client in asked), f"round {lost} was given up: {error}")
    return done


def _check(done: Round, flaky: Unreliable, recipe: Recipe, clients: int) -> None:
    asked = recipe.draw(clients, done.number)
    came = [client for client in asked if flaky.answers(done.number, client)]
    where = f"round {done.number} at a drop-out of {flaky.drop:.0%} (seed {flaky.seed})"
    expect(len(asked) == recipe.asked(clients) == 4, f"{where}: {len(asked)} clients were asked")
    expect(done.clients == min(recipe.cohort, len(came)), f"{where}: {done.clients} of {len(came)} updates were used")
    expect(done.rejected.get("missing", 0) == len(asked) - len(came), f"{where}: {done.rejected} were rejected")
    expect(done.surplus == max(0, len(came) - recipe.cohort), f"{where}: {done.surplus} were surplus")


@dataclass
class Besieged:
    """An engine where some clients send hostile bytes instead of their update, and strangers send some as well."""

    engine: Unreliable
    seed: int = 0

    def __post_init__(self) -> None:
        self.client_states: dict[int, ClientState] = self.engine.client_states

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        for task in tasks:
            draw = Random(rng.number(self.seed, "besieged", task.round, task.client))
            kind = draw.choice(REJECTED)
            bad = kind(target(draw.choice(CODECS)), draw)
            if not self.engine.answers(task.round, task.client):
                yield Update(task.client, bad)
            yield Update(10**9 + task.client, bad)
        yield from self.engine(tasks)


def sieges(*, seed: int = 0, rate: float = 0.4) -> int:
    """Train under hostile messages; the same weights must come out as where those clients are silent. The rejected."""
    made = plain(cohort=5, min_updates=1, seed=seed).experiment
    model, data, recipe = made.make_model(), made.data, made.recipe
    assert not callable(data)
    ends: list[Tensors] = []
    rejected = 0
    for besieged in (False, True):
        with LocalEngine(model, data, recipe) as engine:
            flaky = Unreliable(engine, drop=rate, seed=seed)
            done = list(federate(model, data.sizes, recipe, Besieged(flaky, seed) if besieged else flaky))
        ends.append(done[-1].progress.params)
        rejected = sum(count for round_ in done for reason, count in round_.rejected.items() if reason != "missing")
    expect(model_digest(ends[0]) == model_digest(ends[1]), f"hostile messages changed the model (seed {seed})")
    return rejected
