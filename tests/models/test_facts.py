"""Parameters, FLOPs and bytes of the paper's models, against figures that were derived independently of this code."""

from functools import cache

import pytest
import torch

from progfed import models
from progfed.blocks import Progressive
from progfed.costs import phase
from progfed.schedule import Phase, stage_lengths

MODELS = {
    "emnist": models.convnet_mnist,
    "cifar10": models.convnet_cifar,
    "resnet18": models.resnet18,
    "resnet152": models.resnet152,
    "vgg16": models.vgg16,
    "vgg19": models.vgg19,
    "unet-symmetric": lambda: models.unet(growth="symmetric"),
    "unet-asymmetric": lambda: models.unet(growth="asymmetric"),
}
PARAMETERS = {
    "emnist": (2_366, 22_846, 1_206_590),
    "cifar10": (1_226, 20_042, 56_970, 122_570),
    "resnet18": (156_324, 688_292, 2_800_804, 11_220_132),
    "resnet152": (243_364, 2_608_804, 43_273_892, 58_341_028),
    "vgg16": (273_828, 1_763_492, 7_691_940, 34_015_396),
    "vgg19": (273_828, 2_354_084, 10_643_364, 39_327_652),
}
FLOP_SHARES = {
    "emnist": (0.0110, 0.9008, 1),
    "cifar10": (0.1209, 0.8472, 0.9847, 1),
    "resnet18": (0.2743, 0.5162, 0.7581, 1),
    "resnet152": (0.0589, 0.2257, 0.9290, 1),
    "vgg16": (0.2879, 0.5723, 0.8567, 1),
    "vgg19": (0.2293, 0.5463, 0.8633, 1),
}


def parameters(model: Progressive) -> tuple[int, ...]:
    with torch.device("meta"):
        stages = [model.phase_module(Phase(stage, 1)) for stage in range(1, model.stages + 1)]
    return tuple(sum(p.numel() for p in module.parameters() if p.requires_grad) for module in stages)


@cache
def flop_shares(name: str) -> tuple[float, ...]:
    model = MODELS[name]()
    with torch.device("meta"):
        costs = [phase.per_example(model, Phase(stage, 1)) for stage in range(1, model.stages + 1)]
    return tuple(cost / costs[-1] for cost in costs)


def relative(costs: tuple[float, ...], lengths: tuple[int, ...]) -> float:
    """Percent of end-to-end training, when stage s costs `costs[s]` in each of its rounds."""
    spent = sum(cost * rounds for cost, rounds in zip(costs, lengths, strict=True))
    return 100 * spent / (costs[-1] * sum(lengths))


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_stage_has_exactly_the_derived_number_of_parameters(name: str) -> None:
    assert parameters(MODELS[name]()) == PARAMETERS[name]


@pytest.mark.parametrize("name", FLOP_SHARES)
def test_every_stage_has_the_derived_share_of_the_flops(name: str) -> None:
    assert tuple(round(share, 4) for share in flop_shares(name)) == FLOP_SHARES[name]


@pytest.mark.parametrize(
    ("name", "rounds", "percent"), [("emnist", 1500, 67.01), ("cifar10", 2000, 70.48), ("resnet18", 3000, 66.56)]
)
def test_the_papers_schedules_send_the_derived_share_of_the_bytes(name: str, rounds: int, percent: float) -> None:
    counts = parameters(MODELS[name]())
    assert round(relative(counts, stage_lengths(rounds, len(counts))), 2) == percent


@pytest.mark.parametrize(
    ("name", "rounds", "percent"),
    [
        ("emnist", 1500, 81.86),
        ("cifar10", 2000, 86.91),
        ("resnet18", 200, 81.86),
        ("resnet152", 200, 77.67),
        ("vgg16", 200, 83.96),
        ("vgg19", 200, 82.99),
    ],
)
def test_the_papers_schedules_spend_the_derived_share_of_the_flops(name: str, rounds: int, percent: float) -> None:
    shares = flop_shares(name)
    assert relative(shares, stage_lengths(rounds, len(shares))) == pytest.approx(percent, abs=0.006)


@pytest.mark.parametrize("growth", ["symmetric", "asymmetric"])
def test_the_unet_is_within_a_thousandth_of_the_size_that_the_paper_prints(growth: str) -> None:
    counts = parameters(models.unet(growth=growth))
    assert counts[-1] == 9_447_019
    assert abs(counts[-1] - 9_451_567) < 9_451_567 / 1000


@pytest.mark.parametrize(("growth", "saving"), [("symmetric", 63.6), ("asymmetric", 5.0)])
def test_the_unet_saves_at_least_the_bytes_that_the_paper_prints(growth: str, saving: float) -> None:
    counts = parameters(models.unet(growth=growth))
    assert len(counts) == 4
    assert 100 - relative(counts, (25, 25, 25, 25)) >= saving


def test_early_symmetric_stages_compute_more_and_send_less_than_asymmetric_ones() -> None:
    """The trade-off that the appendix reports: symmetric growth keeps the highest resolution."""
    symmetric, asymmetric = (parameters(MODELS[f"unet-{growth}"]()) for growth in ("symmetric", "asymmetric"))
    assert all(few < many for few, many in zip(symmetric[:-1], asymmetric[:-1], strict=True))
    assert all(
        more > less
        for more, less in zip(flop_shares("unet-symmetric")[:-1], flop_shares("unet-asymmetric")[:-1], strict=True)
    )
