"""Which won at equal bytes, and by how much: three runs, each with one or several seeds, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from progfed.metrics import told
from progfed.report.curves import Mean, mean_of
from progfed.report.numbers import percent, spread
from progfed.runs.directory import Record


@dataclass(frozen=True)
class Side:
    """A run in a comparison: its last metric over seeds, its rounds, and its mean bytes in both directions."""

    run: str
    seeds: tuple[int, ...]
    rounds: int
    metric: Mean
    bytes: float

    @classmethod
    def of(cls, summaries: Sequence[Record]) -> Side:
        """The seeds of one run, by their summaries."""
        first = summaries[0]
        sent = mean_of(one["cost"]["down_bytes"] + one["cost"]["up_bytes"] for one in summaries)
        seeds = tuple(one["seed"] for one in summaries)
        return cls(first["run"], seeds, first["rounds"], mean_of(one["metric"] for one in summaries), sent.mean)


@dataclass(frozen=True)
class Difference:
    """How much better one run is than another, in points of the metric, and the share of the other's bytes it needed.

    `deviation` is the larger of the two standard deviations over seeds; a smaller difference is `within_spread`.
    """

    gain: float
    deviation: float | None
    bytes: float

    @property
    def within_spread(self) -> bool:
        """Whether the difference is smaller than the deviation over seeds; False where there is one seed."""
        return self.deviation is not None and abs(self.gain) < self.deviation


def difference(ours: Side, theirs: Side, *, higher_is_better: bool = True) -> Difference:
    """How much better one run is than another; a negative gain is a loss.

    Args:
        ours: The run that is looked at.
        theirs: The run that it is compared with.
        higher_is_better: Whether the larger metric is the better one.
    """
    gain = ours.metric.mean - theirs.metric.mean
    deviations = [side.metric.std for side in (ours, theirs) if side.metric.std is not None]
    return Difference(gain if higher_is_better else -gain, max(deviations, default=None), ours.bytes / theirs.bytes)


@dataclass(frozen=True)
class Verdict:
    """End-to-end training, growing, and end-to-end training for the bytes of growing, side by side.

    `beside` are further runs, each of which is told how it compares with end-to-end training.
    """

    end_to_end: Side
    growing: Side
    equal_bytes: Side
    beside: tuple[Side, ...] = field(default=(), kw_only=True)
    higher_is_better: bool = field(default=True, kw_only=True)
    unit: str = field(default="%", kw_only=True)

    @property
    def at_equal_bytes(self) -> Difference:
        """Growing, beside end-to-end training for its bytes."""
        return difference(self.growing, self.equal_bytes, higher_is_better=self.higher_is_better)

    @property
    def against_all(self) -> Difference:
        """Growing, beside end-to-end training over all rounds."""
        return difference(self.growing, self.end_to_end, higher_is_better=self.higher_is_better)

    def sentence(self) -> str:
        """Which won at equal bytes and by how much, and what growing cost or gained against all of end-to-end."""
        equal, whole = self.at_equal_bytes, self.against_all
        ours = "growing", self._metric(self.growing)
        theirs = f"end-to-end training ({self.equal_bytes.rounds} rounds)", self._metric(self.equal_bytes)
        (name, figure), (other, rival) = (theirs, ours) if equal.gain < 0 else (ours, theirs)
        figures, points = f"({figure} against {rival})", self._points(equal.gain)
        if points == self._points(0):
            said = f"{name} and {other} are equal {figures}"
        elif equal.within_spread:
            said = f"{name} and {other} differ by {points}, within the spread over seeds {figures}"
        else:
            said = f"{name} beats {other} by {points} {figures}"
        seeds = "" if len(self.growing.seeds) > 1 else " (one seed)"
        return (
            f"At equal bytes {said}; against end-to-end training over all {self.end_to_end.rounds} rounds, "
            f"{self._metric(self.end_to_end)}, growing {self._change(whole)}, "
            f"at {percent(whole.bytes, 1)} of its bytes{seeds}." + "".join(map(self._besides, self.beside))
        )

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        sides = {"end_to_end": self.end_to_end, "growing": self.growing, "equal_bytes": self.equal_bytes}
        compared = {"at_equal_bytes": self.at_equal_bytes, "against_end_to_end": self.against_all}
        return {
            **{name: asdict(side) for name, side in sides.items()},
            **{name: asdict(one) | {"within_spread": one.within_spread} for name, one in compared.items()},
            "beside": [asdict(side) for side in self.beside],
            "sentence": self.sentence(),
        }

    def _besides(self, side: Side) -> str:
        """How a further run compares with end-to-end training."""
        found = difference(side, self.end_to_end, higher_is_better=self.higher_is_better)
        return (
            f" Against the same, {side.run} ({self._metric(side)}) {self._change(found)}, at "
            f"{percent(found.bytes, 1)} of its bytes: {1 / found.bytes:.3g} times fewer."
        )

    def _change(self, found: Difference) -> str:
        if self._points(found.gain) == self._points(0):
            return "lost nothing"
        change = f"{'gained' if found.gain > 0 else 'lost'} {self._points(found.gain)}"
        return f"{change}, within the spread over seeds" if found.within_spread else change

    def _points(self, gain: float) -> str:
        return f"{abs(gain):.2f} points" if self.unit == "%" else told(abs(gain), self.unit)

    def _metric(self, side: Side) -> str:
        return f"{spread(side.metric.mean, side.metric.std, self.unit)} {self.unit}".rstrip()
