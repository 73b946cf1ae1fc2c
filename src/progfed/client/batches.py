"""The batches of a client's round: in the order, and in the layout, in which they are trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from progfed import rng
from progfed.client.kernels import fast_inputs, gather
from progfed.population import Augment, Examples, Held
from progfed.recipe.recipe import Local
from progfed.tensors import leaves, tree_map

_STAGED = 16 * 2**20
"""Bytes of inputs that are gathered at once: whole epochs of small clients, a few batches of volumes."""


@dataclass(frozen=True, kw_only=True)
class Batches:
    """How a client's examples become batches; `seed`, `round` and `client` are the key of all that is drawn for it."""

    local: Local
    augment: Augment | None
    device: str
    seed: int
    round: int
    client: int

    def __call__(self, held: Held) -> Iterator[Examples]:
        """The batches of a round: those of all epochs, up to the limit of steps."""
        return islice(self._all(held), self.local.most_batches)

    def _all(self, held: Held) -> Iterator[Examples]:
        """The batches of all epochs, each epoch in an order of its own, in the layout that the module wants.

        Of tensors many batches are gathered at once and then sliced; augmentation sees one batch at a time.
        """
        room = self.local.batch
        if isinstance(held, Examples) and self.augment is None:
            room = _staged(held, room)
            if room >= held.number:  # change the layout once, not once an epoch
                held = Examples(fast_inputs(held.inputs), held.targets)
        shuffle = self._generator("shuffle")
        draw = self._generator("augment") if self.augment is not None else None
        taken = 0
        for _ in range(self.local.epochs):
            for index in torch.split(torch.randperm(held.number, generator=shuffle), room):
                staged, taken = self._taken(held, index, taken), taken + 1
                if self.augment is not None and draw is not None:
                    staged = self.augment(staged, draw)
                yield from self._sliced(self._ready(staged), isinstance(held, Examples))

    def _generator(self, purpose: str) -> torch.Generator:
        return rng.generator(self.seed, purpose, self.round, self.client)

    def _taken(self, held: Held, index: Tensor, place: int) -> Examples:
        if isinstance(held, Examples):
            return Examples(gather(held.inputs, index), held.targets[index])
        return held.take(index, self.seed, "items", self.round, self.client, place)

    def _ready(self, examples: Examples) -> Examples:
        inputs, targets = fast_inputs(examples.inputs), examples.targets
        if self.device == "cpu":
            return Examples(inputs, targets)
        return Examples(tree_map(lambda leaf: leaf.to(self.device), inputs), targets.to(self.device))

    def _sliced(self, staged: Examples, cut: bool) -> Iterator[Examples]:
        """Batches of the size that was asked for; what a user's collate function made stays one batch."""
        number, size = len(staged.targets), self.local.batch
        if not cut or number <= size:
            yield staged
            return
        for start in range(0, number, size):
            yield staged.take(slice(start, start + size))


def _staged(examples: Examples, batch: int) -> int:
    """How many examples to gather at once: whole batches, as many as fit in a bounded amount of memory."""
    size = sum(leaf.nbytes for leaf in leaves(examples.inputs)) // examples.number
    return batch * max(1, _STAGED // max(1, size * batch))


class Ahead(Iterator[Examples]):
    """Batches of which a thread makes the next one while a step computes gradients: `beside`.

    Nothing draws at random while gradients are computed, so the thread may borrow the default generators, and the
    batches are those that there would be without it.
    """

    def __init__(self, batches: Iterator[Examples]) -> None:
        self._batches = batches
        self._coming: Future[Examples] | None = None

    def beside(self, step: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """The step, during which the next batch is made."""

        def both(loss: Tensor) -> None:
            self._coming = Future()
            thread = threading.Thread(target=self._make, args=(self._coming,), daemon=True)
            thread.start()
            try:
                step(loss)
            finally:
                thread.join()

        return both

    def _make(self, coming: Future[Examples]) -> None:
        try:
            coming.set_result(next(self._batches))
        except BaseException as error:  # the end of the batches too: it is met where the next one is asked for
            coming.set_exception(error)

    def __next__(self) -> Examples:
        if self._coming is None:
            return next(self._batches)
        coming, self._coming = self._coming, None
        return coming.result()
