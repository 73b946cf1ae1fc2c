"""Where a model may be cut: module outputs through which everything passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from progfed.errors import UsageError, did_you_mean
from progfed.split.trace import Call, Node, Trace, is_leaf

Names = frozenset[str]


@dataclass(frozen=True)
class Cut:
    """The end of a block: a module, and the parameters that its output depends on."""

    name: str
    before: Names
    call: Call

    @property
    def depth(self) -> int:
        """How deep the module is nested in others."""
        return self.name.count(".")


@dataclass(frozen=True)
class Survey:
    """The modules that may end a block, why the others may not, and the order in which all modules end."""

    cuts: Mapping[str, Cut]
    reasons: Mapping[str, str]
    order: Sequence[str]

    def possible(self, body: Names, vectors: Names) -> list[Cut]:
        """The cuts worth choosing from, in order: one for each set of parameters before it, all of them in `body`.

        Of several, the latest is taken that still has all its dimensions: after an activation, before a flattening.
        Where only vectors lie between two cuts, as between a convolution and its norm, the larger module is kept.
        """
        groups: dict[Names, list[Cut]] = {}
        for cut in self.cuts.values():
            if cut.before <= body:
                groups.setdefault(cut.before, []).append(cut)
        kept: list[Cut] = []
        for before in sorted(groups, key=len):
            latest = max(groups[before], key=lambda cut: (len(cut.call.shape), cut.call.closed))
            cut = self._outermost(latest)
            if kept and before - kept[-1].before <= vectors:
                cut = min(cut, kept.pop(), key=lambda cut: cut.depth)
            kept.append(cut)
        return kept

    def _outermost(self, cut: Cut) -> Cut:
        """The same features under the name of the largest module that returns them."""
        same = [other for other in self.cuts.values() if other.call.node is cut.call.node]
        inner = min(same, key=lambda other: other.call.closed)
        around = [other for other in same if f"{inner.name}.".startswith(f"{other.name}.")]
        return min(around, key=lambda other: other.depth)

    def named(self, name: str, possible: Sequence[Cut]) -> Cut:
        """The cut that a user names; otherwise an error with the reason why there is none, and the nearest one."""
        if name in self.cuts:
            return self.cuts[name]
        if name not in self.reasons:
            hint = did_you_mean(name, self.order)
            raise UsageError(f"the model has no module {name!r}: {hint}{offer(possible)}")
        raise UsageError(f"{name!r} cannot end a block: {self.reasons[name]}; {self.nearest(name, possible)}")

    def nearest(self, name: str, possible: Sequence[Cut]) -> str:
        """A sentence that names the possible cut nearest to a module."""
        if not possible:
            return offer(possible)
        places = {other: place for place, other in enumerate(self.order)}
        best = min(possible, key=lambda cut: abs(places[cut.name] - places[name]))
        return f"the nearest possible cut is {best.name!r}"


def survey(trace: Trace, modules: Sequence[str]) -> Survey:
    """Find out for every module of the model whether it may end a block."""
    trained, whole = trace.trained, trace.reach(trace.output.grad_fn)
    judged: dict[Node, tuple[str, Names]] = {}
    cuts: dict[str, Cut] = {}
    reasons: dict[str, str] = {}
    places: dict[str, int] = {}
    for name in modules:
        seen = trace.calls.get(name)
        places[name] = seen.closed if seen else max(places.values(), default=0)
        reason, before = _unfit(seen, whole), Names()
        if seen is not None and not reason:
            if seen.node not in judged:
                judged[seen.node] = _bypassed(trace, seen.node), trace.names(trace.reach(seen.node))
            reason, before = judged[seen.node]
            reason = reason or _idle(trace, seen, before, trained)
        if seen is None or reason:
            reasons[name] = reason
        else:
            cuts[name] = Cut(name, before, seen)
    return Survey(cuts, reasons, sorted(places, key=places.__getitem__))


def _unfit(seen: Call | None, whole: set[Node]) -> str:
    """Why a module can never end a block, whatever the graph looks like around it; empty if it can."""
    if seen is None:
        return "the forward does not call it on the example"
    if seen.times > 1:
        return f"the forward calls it {seen.times} times"
    if not seen.shape:
        return f"it returns {seen.returned}, not a tensor"
    if seen.node is None:
        return "nothing that learns comes before its output"
    return "" if seen.node in whole else "its output does not lead to the model's output"


def _bypassed(trace: Trace, node: Node) -> str:
    """Why a node is no cut: something computed before it is used after it without going through it; empty if not."""
    around = trace.reach(trace.output.grad_fn, without=node)
    if any(other in around for other in trace.reach(node) if not is_leaf(other)):
        return "a residual or skip connection goes past it"
    return ""


def _idle(trace: Trace, seen: Call, before: Names, trained: Names) -> str:
    """Why a cut is useless: the sub-model would learn nothing, leave nothing to learn, or run layers in vain."""
    if not before:
        return "nothing that learns comes before its output"
    if before == trained:
        return "nothing that learns comes after it"
    for name in sorted(trained - before):
        owner = trace.calls.get(name.rpartition(".")[0])
        if owner is not None and owner.closed < seen.closed and owner.times == 1:
            return f"{name} is used before it, but only what comes after needs the result"
    return ""


def balanced(sizes: Sequence[int], number: int) -> tuple[int, list[int]]:
    """Where to put `number` borders between pieces of these sizes, so that the sums between them differ least.

    Returns:
        The sum of the squares of these sums, which is the least possible, and the borders; of equal ways, the first.

    >>> balanced([1, 1, 1, 3], 1), balanced([4, 1, 1, 1, 1], 2)
    ((18, [3]), (24, [1, 3]))
    """
    sums = [sum(sizes[:place]) for place in range(len(sizes) + 1)]
    best: dict[int, tuple[int, list[int]]] = {place: (sums[place] ** 2, []) for place in range(1, len(sums))}
    for done in range(1, number + 1):
        best = {
            place: min(
                (best[border][0] + (sums[place] - sums[border]) ** 2, [*best[border][1], border])
                for border in range(done, place)
            )
            for place in range(done + 1, len(sums))
        }
    return best[len(sizes)]


def listed(names: Sequence[str]) -> str:
    """Some names as text, with only the first few where there are many."""
    return ", ".join(repr(name) for name in names[:8]) + (", …" if len(names) > 8 else "")


def offer(possible: Sequence[Cut]) -> str:
    """A sentence that says where a model may be cut."""
    if not possible:
        return "no module of this model may end a block before its head"
    return f"it may be cut after {listed([cut.name for cut in possible])}"
