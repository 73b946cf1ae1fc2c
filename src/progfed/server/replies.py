"""How the server opens the updates of a round: all is checked, what is wrong is counted, and the round goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from progfed.codec import Schema
from progfed.errors import MessageError, TrainingError
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors
from progfed.wire.engine import Update
from progfed.wire.message import Envelope, unseal


class Inbox:
    """Opens the updates of a round in the order of those asked, whatever order they come in, and counts the rejected.

    The first `recipe.cohort` valid ones in that order are used: who answered decides which, never who was faster.
    `asked` says what each was asked to train, and `schemas` what an update then holds; `trained` counts examples.
    """

    def __init__(
        self,
        asked: Mapping[int, Phase],
        sizes: Sequence[int],
        schemas: Mapping[Phase, Schema],
        recipe: Recipe,
        expected: Envelope,
    ) -> None:
        self._asked, self._sizes, self._schemas, self._recipe, self._expected = asked, sizes, schemas, recipe, expected
        self._why = ""
        self._losses = 0.0
        self.rejected: Counter[str] = Counter()
        self.trained: Counter[Phase] = Counter()
        self.up_bytes = self.examples = self.valid = self.surplus = 0

    def open(self, updates: Iterable[Update]) -> Iterator[tuple[float, Tensors]]:
        """Weights and changes of the valid updates; an update that comes early waits, so that sums keep their order."""
        waiting: dict[int, Update] = {}
        seen: set[int] = set()
        order, turn = tuple(self._asked), 0
        for update in updates:
            self.up_bytes += len(update.message)
            if update.client not in self._asked or update.client in seen:
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
        if missing := len(self._asked) - len(seen):
            self.rejected["missing"] += missing

    def _open(self, update: Update) -> Iterator[tuple[float, Tensors]]:
        phase, most = self._asked[update.client], self._sizes[update.client]
        if self.valid == self._recipe.cohort:
            self.surplus += 1
            self.trained[phase] += most
            return
        expected = replace(self._expected, stage=phase.stage, client=update.client, examples=most)
        try:
            found, change = unseal(update.message, expected, self._schemas[phase], self._recipe.up)
        except MessageError as error:
            self._reject(error)
            return
        self.valid += 1
        self.examples += found.examples
        self.trained[phase] += found.examples
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
        if self.valid < self._recipe.needed:
            reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(self.rejected.items()))
            hint = "; lower the learning rate, or use a codec for larger numbers" if self.rejected["not finite"] else ""
            raise TrainingError(
                f"round {number}: {self.valid} of {len(self._asked)} updates were valid, "
                f"{self._recipe.needed} needed "
                f"({reasons}; first: {self._why or 'no reply'}){hint}"
            )
