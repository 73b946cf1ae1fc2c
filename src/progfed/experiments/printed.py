"""What the paper prints, as values: an experiment declares its own as `PAPER`, and the report shows it next to ours.

Metrics are percent, means of three seeds at the paper's full number of rounds. Costs are fractions of the end-to-end
baseline's, or of the run that `Paper.reference` names. The paper's bytes are counted its own way (docs/costs.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Printed:
    """A row of one of the paper's tables: the metric, its deviation, and costs as fractions of the baseline's."""

    metric: float
    std: float | None = None
    bytes: float | None = None
    flops: float | None = None
    seconds: float | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class StageCount:
    """A row of the appendix' tables on the number of stages, in gigabytes and percent.

    `to_baseline` is the cost to reach the baseline's accuracy, `at_cost` the accuracy at the cost of the budget run.
    """

    rounds: int
    metric: float
    cost: int
    to_baseline: int | None = None
    at_cost: float | None = None


@dataclass(frozen=True)
class StageCounts:
    """The appendix' tables on the number of stages: rows by run, the run to reach, and the run whose cost counts."""

    rows: Mapping[str, StageCount]
    baseline: str
    budget: str


@dataclass(frozen=True)
class Paper:
    """What the report shows of the paper next to the runs of an experiment; by default nothing.

    Args:
        shown: The tables and figures, by name.
        rows: The printed row of each run, in the paper's order.
        reference: The run that all printed costs are fractions of, where that is not each run's own baseline.
        bars: The cost whose reduction the paper draws as bars.
        discrepancy: Whether the paper measures alpha and q on the models of these runs.
        stage_counts: The tables on the number of stages.
    """

    shown: str = ""
    rows: Mapping[str, Printed] = field(default_factory=dict)
    reference: str = ""
    bars: Literal["", "bytes", "flops"] = ""
    discrepancy: bool = False
    stage_counts: StageCounts | None = None


def with_baseline(run: str, end_to_end: Printed, progressive: Printed) -> dict[str, Printed]:
    """The printed rows of a run and of its baseline, the baseline first."""
    return {f"{run}-end-to-end": end_to_end, run: progressive}
