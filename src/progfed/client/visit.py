"""One client's part of a round: what a method has in its hands while it trains."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from progfed.client.batches import Ahead
from progfed.client.replica import Turn, total_loss
from progfed.client.sgd import Sgd
from progfed.client.torch_optimizer import TorchOptimizer, stepper
from progfed.codec import Schema
from progfed.errors import ProgfedError, UsageError
from progfed.population import Examples, Fetched, Held, misfit
from progfed.recipe.method import Pull
from progfed.recipe.recipe import Local
from progfed.tensors import Tensors, finite, of_parts, part, sub
from progfed.wire.engine import OWN_KINDS, ClientState, Task

_PART = re.compile(r"E\d+|G\d*")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where clients train: the module of a phase, and what is the same for all of them.

    Args:
        module: The module.
        params: Its parameters that learn, by name.
        trained: Names and shapes of those that are sent back.
        turns: What is trained one after the other: all of it at once, where the phase says nothing else.
        parts: The parts of the model that the phase uses.
        lasting: Those that it or a later phase uses: what clients keep of others is dropped.
        local: How a client trains.
        device: Where the module is.
        example: The model's own example, for errors.
    """

    module: nn.Module
    params: Mapping[str, Tensor]
    trained: Schema
    turns: tuple[Turn, ...]
    parts: frozenset[str]
    lasting: frozenset[str]
    local: Local
    device: str
    example: object


class ClientVisit:
    """What `progfed.Visit` promises, on a replica of the model."""

    def __init__(
        self,
        task: Task,
        place: Place,
        examples: Held,
        batches: Callable[[Held], Iterator[Examples]],
        *,
        start: Mapping[str, Tensor],
        sent: Mapping[str, Tensors],
        remembered: ClientState,
        test: Callable[[], Held | None] = lambda: None,
        takes_one: Callable[[object], bool] = lambda inputs: True,
        named: str = "a client",
        rehearsal: bool = False,
        piece: int | None = None,
    ) -> None:
        self.client, self.round, self.phase, self.lr = task.client, task.round, task.phase, task.lr
        self.module, self.trained, self.start, self.sent = place.module, place.trained, start, sent
        self.params: Mapping[str, Tensor] = place.params
        self.examples, self.rehearsal = examples, rehearsal
        self._place, self._batches, self._test, self._takes_one = place, batches, test, takes_one
        self._remembered, self._named, self._piece = remembered, named, piece
        self._velocity = of_parts(remembered.get("velocity", {}), place.parts)
        self._kept: ClientState = {}
        self._losses: list[tuple[Tensor, int]] = []
        self._ahead: Ahead | None = None
        self._stepper: Sgd | TorchOptimizer | None = None
        self._learning: Mapping[str, Tensor] = self.params
        self._taken = 0
        self.beside: Tensors = {}
        """What was sent, under `slot/name`."""

    @property
    def test(self) -> Held | None:
        return self._test()

    @property
    def steps(self) -> int:
        return self._taken + (self._stepper.taken if self._stepper is not None else 0)

    def run(
        self,
        *,
        loss: Callable[..., Tensor] | None = None,
        pull: Pull | None = None,
        only: Callable[[str], bool] | None = None,
    ) -> None:
        chosen = [name for name in self.params if only is None or only(name)]
        if not chosen:
            raise UsageError("run(only=…) leaves nothing that learns: let it choose some of visit.params")
        before = len(self._losses)
        for turn in self._place.turns:
            learning = {name: p for name, p in turn.params.items() if name in chosen}
            if not learning:
                continue
            del self._losses[before:]  # the loss of a phase that is trained in turns is that of the last
            with self._alone(turn.module, learning):
                for batch in self.batches():
                    self.learn(batch, loss=loss, pull=pull)
                self.finish()

    def batches(self) -> Iterator[Examples]:
        least = min(2, self.examples.number, self._place.local.batch)
        batches = Ahead(self._batches(self.examples))
        self._ahead = batches if isinstance(self.examples, Fetched) and self.examples.ahead else None
        for batch in batches:
            if len(batch.targets) >= least or self._takes_one(batch.inputs):
                yield batch

    def learn(self, batch: Examples, *, loss: Callable[..., Tensor] | None = None, pull: Pull | None = None) -> Tensor:
        step = self._stepper or self._begin()
        step.pulls = None if pull is None else partial(self._pulled, pull)
        pieces = [batch] if self._piece is None else _cut(batch, self._piece)
        shares = [self._take(step, piece, loss, part_of=batch, last=piece is pieces[-1]) for piece in pieces]
        found = shares[0] if len(shares) == 1 else torch.stack(shares).sum()
        self._losses.append((found, len(batch.targets)))
        return found

    def change(self) -> Tensors:
        return sub({name: p.detach() for name, p in self.params.items() if name in self.trained}, self.start)

    def remembered(self, slot: str) -> Tensors:
        found, device = self.kept(slot), self._place.device
        return {
            name: found[name] if name in found else torch.zeros(shape, device=device)
            for name, shape in self.trained.items()
        }

    def kept(self, slot: str) -> Tensors:
        found = self._kept.get(slot, self._remembered.get(slot, {}))
        return {name: value.to(self._place.device) for name, value in found.items()}

    def keep(self, slot: str, tensors: Mapping[str, Tensor]) -> None:
        if slot in OWN_KINDS or "/" in slot:
            raise UsageError(
                f"a method cannot keep tensors under {slot!r}: it has a slash, or is one of {', '.join(OWN_KINDS)}, "
                "which are taken: choose another name"
            )
        before = self._kept.get(slot, self._remembered.get(slot, {}))
        lasting = {name: value for name, value in before.items() if self._lasts(name)}
        self._kept[slot] = lasting | {name: value.detach().cpu().clone() for name, value in tensors.items()}

    def send(self, slot: str, tensors: Mapping[str, Tensor]) -> None:
        self.beside |= {f"{slot}/{name}": value.detach().cpu() for name, value in tensors.items()}

    def finish(self) -> None:
        """Take the step for gradients that still wait, and let go of the optimizer; its momentum stays."""
        step, self._stepper = self._stepper, None
        if step is None:
            return
        step.finish()
        self._taken += step.taken
        if self._place.local.keep_momentum and isinstance(step, Sgd):
            self._velocity |= zip(self._learning, step.velocity, strict=False)

    def mean_loss(self) -> float:
        """The mean loss over all examples; looked at only in the end, since a GPU is waited for at each look."""
        total = sum(float(loss) * number for loss, number in self._losses)
        return total / max(1, sum(number for _, number in self._losses))

    @property
    def sound(self) -> bool:
        """Whether all that the method sends and keeps is finite."""
        return all(map(finite, (self.beside, *self._kept.values())))

    def state(self) -> ClientState:
        """What the client keeps after this visit: the slots of its method, and the momentum where that is kept."""
        velocity = {name: value.cpu().contiguous() for name, value in self._velocity.items()}
        others = {kind: kept for kind, kept in self._remembered.items() if kind not in OWN_KINDS}
        return {**({"velocity": velocity} if velocity else {}), **others, **self._kept}

    def _take(
        self,
        step: Sgd | TorchOptimizer,
        piece: Examples,
        loss: Callable[..., Tensor] | None,
        *,
        part_of: Examples,
        last: bool,
    ) -> Tensor:
        """Forward and backward of a piece of a batch, after the last one the step; returns its share of the loss."""
        found, limit = self._loss(piece, loss), self._place.local.skip_above
        whole = piece is part_of
        if not whole:
            found = found * (len(piece.targets) / len(part_of.targets))
        if limit == math.inf or found < limit:  # who has no limit does not wait for the number
            take = step if whole else partial(step, whole=last)
            (self._ahead.beside(take) if last and self._ahead is not None else take)(found)
        return found.detach()

    def _begin(self) -> Sgd | TorchOptimizer:
        """The optimizer of what learns now, with the momentum of before where that is kept."""
        step = stepper(list(self._learning.values()), self._place.local, self.lr)
        if self._velocity and isinstance(step, Sgd):
            step.resume([self._velocity.get(name) for name in self._learning])
        self._stepper = step
        return step

    @contextmanager
    def _alone(self, module: nn.Module, learning: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Inside the block only some parameters learn, in a part of the module, with an optimizer of their own."""
        if learning.keys() == self.params.keys():
            yield
            return
        self.finish()
        whole, self.module, self._learning = self.module, module, learning
        try:
            for name, p in self.params.items():
                p.requires_grad_(name in learning)
            yield
        finally:
            self.module, self._learning = whole, self.params
            for p in self.params.values():
                p.requires_grad_(True)

    def _pulled(self, pull: Pull) -> list[Tensor | None]:
        """What the method adds to the gradients, in the order of the parameters that learn now."""
        found = pull({name: p.detach() for name, p in self.params.items()})
        return [found.get(name) for name in self._learning]

    def _lasts(self, name: str) -> bool:
        """Whether the model may need a tensor of this name again; what is none of the model's has its own reasons."""
        return part(name) in self._place.lasting or not _PART.fullmatch(part(name))

    def _loss(self, batch: Examples, instead: Callable[..., Tensor] | None) -> Tensor:
        local, outputs = self._place.local, None
        loss = instead or partial(total_loss, local.loss, between=local.between)
        try:
            outputs = self.module(batch.inputs)
            found = loss(outputs, batch.targets)
        except ProgfedError:
            raise
        except Exception as error:
            raise misfit(error, batch, self._place.example, self._named, outputs=outputs) from error
        if not isinstance(found, Tensor) or found.dim():
            told = f"a tensor of shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise UsageError(f"the loss gives {told} where training needs a tensor of one number: return the mean")
        return found


def _cut(batch: Examples, piece: int) -> list[Examples]:
    """A batch in pieces of at most so many examples."""
    number = len(batch.targets)
    return [batch] if number <= piece else [batch.take(slice(at, at + piece)) for at in range(0, number, piece)]


def check_pieces(module: nn.Module, local: Local) -> None:
    """Refuse batches in pieces where a step would not be that of the whole batch."""
    if any(isinstance(child, nn.modules.batchnorm._BatchNorm) for child in module.modules()):
        raise UsageError(
            "batch normalisation of a piece of a batch is not that of the whole: leave out the population's pieces, or "
            "use group normalisation"
        )
    if local.skip_above < math.inf:
        raise UsageError(
            "skip_above looks at the loss of a whole batch before the step, and pieces have none: leave out one of them"
        )
