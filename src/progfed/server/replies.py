"""How the server collects the updates of a round: all is checked, what is wrong is counted, and the round goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

from progfed.codec import Float, Schema
from progfed.errors import MessageError, TrainingError
from progfed.recipe.aggregate import robust
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.server.broadcast import Broadcast
from progfed.tensors import Tensors
from progfed.wire.engine import Engine, Task, Update
from progfed.wire.message import ASK, UP, Envelope, kind_of, unseal


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came back in a round.

    The updates of `clients` clients were valid; `loss` is their mean over examples, or their median where a
    robust aggregate is to keep one client from deciding. `rejected` counts the others by reason, `surplus` the
    reserves that answered and were not needed. `updates` counts the valid ones by sub-model, and `trained` the examples
    that were trained on, each as often as it was. `up_bytes` is the length of all updates; `asked_up` that of the
    requests for a whole model, and `asked_down` that of the models which were sent on request.
    """

    loss: float
    clients: int
    rejected: dict[str, int]
    surplus: int
    updates: Mapping[Phase, int]
    trained: Mapping[Phase, int]
    up_bytes: int
    asked_up: int
    asked_down: int


@contextmanager
def collect(
    engine: Engine,
    tasks: Sequence[Task],
    sent: Broadcast,
    *,
    recipe: Recipe,
    sizes: Sequence[int],
    schemas: Mapping[Phase, Schema],
    counts: Mapping[int, float] | None = None,
) -> Iterator[Replies]:
    """Hand out the tasks and open the updates while the block iterates over the replies.

    `tasks` are in the order in which updates are summed up; `sizes[i]` is the most examples that client i may claim,
    and `schemas` says what an update of each sub-model holds. `counts` are factors of the updates of some clients.
    When the block is left, the replies that it did not take are opened and counted as well, training stops where too
    few were valid, and `summary` is there.
    """
    replies = Replies(engine, tasks, sent, recipe, sizes, schemas, counts or {})
    try:
        yield replies
        replies.finish()
    finally:
        replies.give_up()


class Replies:
    """Weights and changes of the valid updates, each once, in the order of the tasks, whatever order they come in.

    The first `recipe.cohort` valid ones in that order are used: who answered decides which, never who was faster.
    This is an iterator without `close`, which a generator of the aggregate's own would call when it stops early.
    """

    summary: Summary
    """Set by `finish`, when all replies are in."""

    def __init__(
        self,
        engine: Engine,
        tasks: Sequence[Task],
        sent: Broadcast,
        recipe: Recipe,
        sizes: Sequence[int],
        schemas: Mapping[Phase, Schema],
        counts: Mapping[int, float],
    ) -> None:
        self._tasks, self._counts = {task.client: task for task in tasks}, counts
        self._sent, self._recipe, self._sizes, self._schemas = sent, recipe, sizes, schemas
        self._why = ""
        self._losses: list[float] = []
        self._loss = 0.0
        self._rejected: Counter[str] = Counter()
        self._updates: Counter[Phase] = Counter()
        self._trained: Counter[Phase] = Counter()
        self._up_bytes = self._asked_up = self._asked_down = self._examples = self._valid = self._surplus = 0
        self._opened = self._open_all(self._exchange(engine, tasks))

    def __iter__(self) -> Replies:
        return self

    def __next__(self) -> tuple[float, Tensors]:
        return next(self._opened)

    def finish(self) -> None:
        """Open what is left, and stop where too few updates were valid: an average of garbage is worse than none."""
        for _ in self._opened:
            pass
        if self._valid < self._recipe.needed:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self._rejected.items()))
            large = self._rejected["not finite"]
            hint = "; lower the learning rate, or use a codec for larger numbers" if large else ""
            raise TrainingError(
                f"round {self._sent.envelope.round}: {self._valid} of {len(self._tasks)} updates were valid, "
                f"{self._recipe.needed} needed ({reasons}; first: {self._why or 'no reply'}){hint}"
            )
        self.summary = Summary(
            loss=median(self._losses) if robust(self._recipe.aggregate) else self._loss / max(self._examples, 1),
            clients=self._valid,
            rejected=dict(self._rejected),
            surplus=self._surplus,
            updates=dict(self._updates),
            trained=dict(self._trained),
            up_bytes=self._up_bytes,
            asked_up=self._asked_up,
            asked_down=self._asked_down,
        )

    def give_up(self) -> None:
        """Let go of what is still to come, if anything is: the round has failed."""
        self._opened.close()

    def _exchange(self, engine: Engine, tasks: Sequence[Task]) -> Iterator[Update]:
        """Hand out the tasks and pass on the updates; clients that ask for the whole model get it and try again."""
        # the deepest first: a replica of one sub-model is made once a round, not once a client
        tasks = sorted(tasks, key=lambda task: (-task.phase.stage, task.phase.at_once))
        asking: set[int] = set()
        for update in engine(tasks):
            if self._sent.held and _asks(update, self._sent.envelope):
                asking.add(update.client)
                self._asked_up += len(update.message)
            else:
                yield update
        if asking:
            whole = self._sent.whole()
            again = [replace(task, message=whole) for task in tasks if task.client in asking]
            self._asked_down += len(whole) * len(again)
            yield from engine(again)

    def _open_all(self, updates: Iterable[Update]) -> Generator[tuple[float, Tensors], None, None]:
        """Open updates in the order of the tasks; one that comes early waits, so that sums keep their order."""
        waiting: dict[int, Update] = {}
        seen: set[int] = set()
        order, turn = tuple(self._tasks), 0
        for update in updates:
            self._up_bytes += len(update.message)
            if update.client not in self._tasks or update.client in seen:
                self._reject(MessageError("unexpected", f"client {update.client} was not asked, or answered before"))
                continue
            seen.add(update.client)
            waiting[update.client] = update
            while turn < len(order) and order[turn] in waiting:
                yield from self._open(waiting.pop(order[turn]))
                turn += 1
        for client in order:
            if client in waiting:
                yield from self._open(waiting[client])
        if missing := len(self._tasks) - len(seen):
            self._rejected["missing"] += missing

    def _open(self, update: Update) -> Iterator[tuple[float, Tensors]]:
        task, most = self._tasks[update.client], self._sizes[update.client]
        phase = task.phase
        if self._valid == self._recipe.cohort:
            self._surplus += 1
            self._trained[phase] += self._recipe.local.seen(most)
            return
        expected = Envelope(UP, self._sent.envelope.run_id, task.round, phase.stage, update.client, most)
        try:
            found, change = unseal(update.message, expected, self._schemas[phase], self._recipe.upward)
        except MessageError as error:
            self._reject(error)
            return
        self._valid += 1
        self._updates[phase] += 1
        self._examples += found.examples
        self._trained[phase] += self._recipe.local.seen(found.examples)
        self._loss += found.loss * found.examples
        self._losses.append(found.loss)
        if (count := self._counts.get(update.client, 1.0)) != 1.0:
            change = {name: value * count for name, value in change.items()}
        yield (found.examples if self._recipe.weighting == "examples" else 1.0), change

    def _reject(self, error: MessageError) -> None:
        self._rejected[error.reason] += 1
        self._why = self._why or str(error)


def _asks(update: Update, envelope: Envelope) -> bool:
    """Whether an update is a valid request for the whole model; anything else is opened as an update."""
    if kind_of(update.message) != ASK:
        return False
    try:
        unseal(update.message, replace(envelope, kind=ASK, client=update.client), {}, Float())
    except MessageError:
        return False
    return True
