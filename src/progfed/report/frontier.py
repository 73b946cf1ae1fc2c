"""The frontier of an experiment: the best that any of its runs reached for at most so many bytes."""

from __future__ import annotations

from dataclasses import dataclass

from progfed.report.curves import CurvePoint, Series, Study


@dataclass(frozen=True)
class Front:
    """A point of a run that no run was better than for as few bytes."""

    series: Series
    point: CurvePoint

    @property
    def bytes(self) -> float:
        """The bytes that the run had sent by then, in both directions."""
        return self.point.at["bytes"]

    @property
    def metric(self) -> float:
        """The metric then, as the mean over seeds."""
        return self.point.metric.mean


def frontier(study: Study) -> tuple[Front, ...]:
    """The points of all runs that no other was better than for as few bytes, from the fewest bytes to the most.

    Empty unless the runs differ by more than ten times in bytes (`Study.log_bytes`): otherwise their curves say it.
    """
    if not study.log_bytes:
        return ()
    sign = 1 if study.series[0].first.higher_is_better else -1
    points = [Front(series, point) for series in study.series for point in series.points]
    found: list[Front] = []
    for one in sorted(points, key=lambda one: (one.bytes, -sign * one.metric)):
        if not found or sign * one.metric > sign * found[-1].metric:
            found.append(one)
    return tuple(found)
