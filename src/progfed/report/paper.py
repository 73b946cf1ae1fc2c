"""What the paper prints, by experiment and run: the tables of the ProgFed paper (ICML 2022) as data.

Metrics are percent, means of three seeds at the paper's full number of rounds. Costs are fractions of the end-to-end
baseline's, or of the run that `REFERENCE` names. The paper's bytes are counted its own way (docs/costs.md).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A row of a table: metric and its standard deviation, and costs as fractions of the baseline's."""

    metric: float
    std: float | None = None
    bytes: float | None = None
    flops: float | None = None
    seconds: float | None = None
    rounds: int | None = None


REFERENCE = {"compression": "float-end-to-end"}
"""Experiments whose printed costs are fractions of one run, not of each run's own baseline."""


def figure(experiment: str, run: str) -> Figure | None:
    """What the paper prints for a run, if it is one of the paper's."""
    return _FIGURES.get((experiment, run))


def runs(experiment: str) -> tuple[str, ...]:
    """The runs of an experiment for which the paper prints a figure."""
    return tuple(run for name, run in _FIGURES if name == experiment)


def _pair(run: str, end_to_end: Figure, progressive: Figure) -> dict[str, Figure]:
    return {f"{run}-end-to-end": end_to_end, run: progressive}


def _centralized() -> dict[str, Figure]:
    """Table 2: CIFAR-100, 200 epochs."""
    table = (
        ("resnet18", (76.08, 0.12), (75.84, 0.28), 24.75, 14.60),
        ("resnet152", (77.77, 0.38), (78.57, 0.33), 22.75, 19.68),
        ("vgg16", (71.79, 0.15), (71.54, 0.45), 14.57, 13.02),
        ("vgg19", (70.81, 1.18), (70.90, 0.43), 22.10, 14.43),
    )
    found: dict[str, Figure] = {}
    for run, baseline, ours, walltime, flops in table:
        reduced = Figure(*ours, flops=1 - flops / 100, seconds=1 - walltime / 100, rounds=200)
        found |= _pair(run, Figure(*baseline, rounds=200), reduced)
    return found


def _federated() -> dict[str, Figure]:
    """Table 3: federated classification (accuracy) and segmentation (Dice)."""
    table = (
        ("emnist", 1500, (85.75, 0.11), (85.67, 0.06), 29.49),
        ("cifar10", 2000, (84.67, 0.14), (84.85, 0.30), 29.70),
        ("cifar100", 3000, (52.08, 0.44), (53.23, 0.09), 22.90),
        ("brats-asymmetric", 100, (86.77, 0.45), (87.66, 0.49), 5.02),
        ("brats-symmetric", 100, (86.77, 0.45), (87.96, 0.03), 63.60),
    )
    found: dict[str, Figure] = {}
    for run, rounds, baseline, ours, saved in table:
        found |= _pair(run, Figure(*baseline, rounds=rounds), Figure(*ours, bytes=1 - saved / 100, rounds=rounds))
    return found


def _optimizers() -> dict[str, Figure]:
    """Table 4: FedAvg, FedProx and FedAdam on EMNIST and CIFAR-100."""
    table = (
        ("emnist-fedavg", 1500, 85.75, 85.67),
        ("emnist-fedprox", 1500, 86.36, 86.08),
        ("emnist-fedadam", 1500, 86.53, 86.13),
        ("cifar100-fedavg", 3000, 52.08, 53.23),
        ("cifar100-fedprox", 3000, 53.25, 54.28),
        ("cifar100-fedadam", 3000, 56.21, 60.55),
    )
    found: dict[str, Figure] = {}
    for run, rounds, baseline, ours in table:
        found |= _pair(run, Figure(baseline, rounds=rounds), Figure(ours, rounds=rounds))
    return found


def _compression() -> dict[str, Figure]:
    """Table 5 and its standard deviations: ResNet-18 on federated CIFAR-100; costs relative to float end-to-end."""
    table = (
        ("float", (52.08, 0.44), (53.23, 0.09), 100.0, 77.10),
        ("lq-8", (49.40, 0.75), (53.07, 1.00), 25.00, 19.28),
        ("lq-4", (49.55, 0.59), (52.32, 0.15), 12.50, 9.64),
        ("lq-2", (47.26, 0.29), (52.87, 0.54), 6.25, 4.82),
        ("sp-25", (51.23, 0.56), (52.00, 0.19), 25.00, 19.28),
        ("sp-10", (51.79, 0.10), (51.86, 0.23), 10.00, 7.71),
        ("lq-8+sp-25", (49.67, 1.58), (52.19, 0.03), 6.25, 4.82),
        ("lq-8+sp-10", (50.25, 1.03), (52.24, 0.12), 2.50, 1.93),
    )
    found: dict[str, Figure] = {}
    for run, baseline, ours, before, after in table:
        plain = Figure(*baseline, bytes=before / 100, rounds=3000)
        found |= _pair(run, plain, Figure(*ours, bytes=after / 100, rounds=3000))
    return found


def _strategies() -> dict[str, Figure]:
    """Table 6: which blocks learn when, ResNet-18 on CIFAR-100, centralized; cost is FLOPs."""
    return {
        "end-to-end": Figure(76.08, 0.12, flops=1.0, rounds=200),
        "progressive": Figure(75.84, 0.28, flops=0.86, rounds=200),
        "layerwise": Figure(72.40, 0.16, flops=1.0, rounds=200),
        "partial": Figure(74.70, 0.04, flops=1.0, rounds=200),
        "mixed": Figure(75.04, 1.26, flops=1.0, rounds=200),
        "random": Figure(74.38, 0.97, flops=0.88, rounds=200),
    }


@dataclass(frozen=True)
class Ablation:
    """A row of the appendix' tables on the number of stages, in gigabytes and percent.

    `to_baseline` is the cost to reach end-to-end's accuracy, `at_cost` the accuracy at the whole cost of `s4`.
    """

    rounds: int
    metric: float
    cost: int
    to_baseline: int | None = None
    at_cost: float | None = None


STAGES = {
    "end-to-end": Ablation(3000, 52.08, 5368, 5368, 51.19),
    "s3": Ablation(3000, 51.33, 4418),
    "s4": Ablation(3000, 53.23, 4179, 3804, 53.23),
    "s5": Ablation(3000, 51.53, 4264),
    "s8": Ablation(3000, 50.70, 3901),
    "s3-4000": Ablation(4000, 53.80, 5695, 4365, 52.33),
    "s5-4000": Ablation(4000, 54.25, 5479, 3781, 53.56),
    "s8-4000": Ablation(4000, 54.46, 5166, 3421, 53.50),
}


def _stages() -> dict[str, Figure]:
    """The appendix' table on S: accuracy, and cost as a fraction of end-to-end's."""
    whole = STAGES["end-to-end"].cost
    return {run: Figure(row.metric, bytes=row.cost / whole, rounds=row.rounds) for run, row in STAGES.items()}


_FIGURES = {
    (experiment, run): printed
    for experiment, table in {
        "centralized": _centralized(),
        "federated": _federated(),
        "optimizers": _optimizers(),
        "compression": _compression(),
        "strategies": _strategies(),
        "stages": _stages(),
    }.items()
    for run, printed in table.items()
}
