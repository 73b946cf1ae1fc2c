"""How the server opens the updates of a round: all is checked, what is wrong is counted, and the round goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from progfed.codec import Schema
from progfed.errors import MessageError, TrainingError
from progfed.protocol import UP, Envelope, Update, unseal
from progfed.recipe import Recipe
from progfed.tensors import Tensors


class Inbox:
    """Opens the updates of a round in the order of those asked, whatever order they come in, and counts the rejected.

    The first `recipe.cohort` valid ones in that order are used: who answered decides which, never who was faster.
    """

    def __init__(
        self, asked: Sequence[int], sizes: Sequence[int], schema: Schema, recipe: Recipe, expected: Envelope
    ) -> None:
        self._asked, self._sizes, self._schema, self._recipe, self._expected = asked, sizes, schema, recipe, expected
        self._why = ""
        self._losses = 0.0
        self.rejected: Counter[str] = Counter()
        self.up_bytes = self.examples = self.trained = self.valid = self.surplus = 0

    def open(self, updates: Iterable[Update]) -> Iterator[tuple[float, Tensors]]:
        """Weights and changes of the valid updates; an update that comes early waits, so that sums keep their order."""
        waiting: dict[int, Update] = {}
        seen: set[int] = set()
        turn = 0
        for update in updates:
            self.up_bytes += len(update.message)
            if update.client not in self._asked or update.client in seen:
                self._reject(MessageError("unexpected", f"client {update.client} was not asked, or answered before"))
                continue
            seen.add(update.client)
            waiting[update.client] = update
            while turn < len(self._asked) and self._asked[turn] in waiting:
                yield from self._open(waiting.pop(self._asked[turn]))
                turn += 1
        for client in self._asked:
            if client in waiting:
                yield from self._open(waiting[client])
        if missing := len(self._asked) - len(seen):
            self.rejected["missing"] += missing

    def _open(self, update: Update) -> Iterator[tuple[float, Tensors]]:
        if self.valid == self._recipe.cohort:
            self.surplus += 1
            self.trained += self._sizes[update.client]
            return
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
        self.trained += found.examples
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
                f"round {number}: {self.valid} of {len(self._asked)} updates were valid, "
                f"{self._recipe.min_updates} needed "
                f"({reasons}; first: {self._why or 'no reply'}){hint}"
            )
