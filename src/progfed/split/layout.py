"""Which tensors of a model belong to which block: the cuts that were chosen or named, and the final head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from progfed.errors import UsageError
from progfed.split.cuts import Cut, Names, Survey, balanced, listed, offer, survey
from progfed.split.trace import Trace

Balance = Literal["params", "flops"]

_NEARLY = 1.1
"""How much larger the sum of squares of the blocks' sizes may be for the sake of whole modules."""


@dataclass(frozen=True)
class Layout:
    """Which modules end blocks 1..S-1, and which parameters belong to the final head G_S."""

    cuts: tuple[Cut, ...]
    head: Names

    def part(self, name: str, trace: Trace) -> str:
        """The part that a tensor belongs to: the first block whose end depends on it.

        A tensor that no gradient reaches belongs to the block in which its module begins, since its forward may use it.
        """
        owner = name.rpartition(".")[0]
        opened = trace.calls[owner].opened if owner in trace.calls else trace.calls[""].closed
        for number, cut in enumerate(self.cuts, start=1):
            if name in cut.before or (name not in trace.trained and opened < cut.call.closed):
                return f"E{number}"
        own = any(other.rpartition(".")[0] == owner for other in self.head)
        stages = len(self.cuts) + 1
        return f"G{stages}" if name in self.head or (own and name not in trace.trained) else f"E{stages}"


def arrange(
    trace: Trace,
    modules: Sequence[str],
    *,
    stages: int,
    balance: Balance = "params",
    cuts: Sequence[str] | None = None,
    head: Sequence[str] | None = None,
) -> Layout:
    """The layout: cut where the user says, or where blocks become as equal as possible."""
    if balance not in ("params", "flops"):
        raise UsageError(f"blocks are balanced by 'params' or 'flops', not {balance!r}")
    found = survey(trace, modules)
    vectors = frozenset(name for name, value in trace.parameters.items() if value.dim() <= 1)
    top = _head(trace, found, vectors, modules, head)
    body = trace.trained - top
    possible = [cut for cut in found.possible(body, vectors) if cut.before != body]
    if cuts is not None:
        return Layout(_named(found, possible, cuts, stages, body), top)
    if not 1 <= stages <= len(possible) + 1:
        raise UsageError(
            f"this model can be split into 1 to {len(possible) + 1} stages, not {stages}: {offer(possible)}"
        )
    return Layout(_chosen(trace, possible, body, balance, stages - 1), top)


def _head(trace: Trace, found: Survey, vectors: Names, modules: Sequence[str], head: Sequence[str] | None) -> Names:
    """The parameters of the final head: of the modules named, or all that come after the last possible cut."""
    if head is None:
        possible = found.possible(trace.trained, vectors)
        if not possible:
            raise UsageError(f"this model cannot be split: {offer(possible)}")
        return trace.trained - possible[-1].before
    for name in head:
        if name not in modules:
            raise UsageError(f"the model has no module {name!r} to be the head: name one or more of its modules")
    top = frozenset(name for name in trace.trained if any(f"{name}.".startswith(f"{own}.") for own in head))
    if not top or top == trace.trained:
        amount = "all" if top else "none"
        raise UsageError(
            f"head {listed(head)} has {amount} of the parameters that learn (shared ones belong to the module that "
            f"uses them first): name the last layers, or leave `head` out"
        )
    return top


def _named(found: Survey, possible: Sequence[Cut], names: Sequence[str], stages: int, body: Names) -> tuple[Cut, ...]:
    """The cuts that the user names, checked against the possible ones."""
    if len(names) != stages - 1:
        raise UsageError(
            f"{stages} stages need {stages - 1} cuts, not {len(names)}: name where each block but the last ends"
        )
    chosen = [found.named(name, possible) for name in names]
    for cut in chosen:
        if not cut.before <= body:
            raise UsageError(f"{cut.name!r} belongs to the final head; {found.nearest(cut.name, possible)}")
    for first, second in pairwise(chosen):
        if not first.before < second.before:
            raise UsageError(
                f"cuts {listed(names)} must be in the order of the forward, with something to learn between "
                f"{first.name!r} and {second.name!r}: {offer(possible)}"
            )
    if chosen and chosen[-1].before == body:
        last = chosen[-1].name
        raise UsageError(f"nothing but the final head comes after {last!r}; {found.nearest(last, possible)}")
    return tuple(chosen)


def _chosen(trace: Trace, possible: Sequence[Cut], body: Names, balance: Balance, number: int) -> tuple[Cut, ...]:
    """The cuts that make blocks most equal; larger modules are preferred where blocks stay nearly as equal."""
    least, _ = balanced(_sizes(trace, possible, body, balance), number)
    for depth in sorted({cut.depth for cut in possible}):
        some = [cut for cut in possible if cut.depth <= depth]
        if len(some) >= number:
            spread, borders = balanced(_sizes(trace, some, body, balance), number)
            if spread <= _NEARLY * least:
                return tuple(some[border - 1] for border in borders)
    return ()


def _sizes(trace: Trace, possible: Sequence[Cut], body: Names, balance: Balance) -> list[int]:
    """The parameters or FLOPs before the first possible cut, between each two, and after the last."""
    if balance == "flops":
        done = [0, *(cut.call.flops for cut in possible), trace.calls[""].flops]
    else:
        names = [*(cut.before for cut in possible), body]
        done = [0, *(sum(trace.parameters[name].numel() for name in some) for some in names)]
    return [after - before for before, after in pairwise(done)]
