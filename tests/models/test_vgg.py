"""VGG-16 and VGG-19."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from progfed.blocks import Progressive, state
from progfed.errors import UsageError
from progfed.models import vgg16, vgg19
from progfed.schedule import Phase


def children(model: Progressive) -> list[list[str]]:
    with torch.device("meta"):
        module = model.phase_module(Phase(model.stages, 1))
    blocks = [module.get_submodule(f"E{stage}") for stage in range(1, model.stages + 1)]
    return [[name for name, _ in block.named_children()] for block in blocks]


def test_without_a_norm_the_net_is_convolutions_pools_and_three_fully_connected_layers() -> None:
    module = vgg16(classes=7, norm=None).at(4).eval()
    weights = list(state(module).values())
    images = torch.rand(2, 3, 32, 32)
    hidden, used = images, 0
    for depth in (2, 2, 3, 3, 3):
        for _ in range(depth):
            hidden = functional.conv2d(hidden, weights[used], weights[used + 1], padding=1).relu()
            used += 2
        hidden = functional.max_pool2d(hidden, 2)
    hidden = functional.linear(hidden.flatten(1), *weights[26:28]).relu()
    hidden = functional.linear(hidden, *weights[28:30]).relu()
    assert torch.equal(module(images), functional.linear(hidden, *weights[30:32]))
    assert len(weights) == 32


def test_without_a_norm_the_signal_neither_dies_nor_explodes_through_the_convolutions() -> None:
    model = vgg19(norm=None)
    features = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for stage in range(1, 5):
        features = model.make(f"E{stage}")(features)
    assert 0.1 < features.std() < 10


def test_nineteen_has_three_convolutions_more_than_sixteen() -> None:
    with torch.device("meta"):
        small, large = (model.phase_module(Phase(4, 1)) for model in (vgg16(), vgg19()))
    convs = [sum(isinstance(m, nn.Conv2d) for m in module.modules()) for module in (small, large)]
    assert convs == [13, 16]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (2, [["conv1", "conv2", "conv3"], ["conv4", "conv5"]]),
        (3, [["conv1", "conv2"], ["conv3", "conv4"], ["conv5"]]),
        (4, [["conv1", "conv2"], ["conv3"], ["conv4"], ["conv5"]]),
        (5, [["conv1"], ["conv2"], ["conv3"], ["conv4"], ["conv5"]]),
    ],
)
def test_blocks_end_at_max_pools(stages: int, expected: list[list[str]]) -> None:
    assert children(vgg16(stages=stages)) == expected


def test_group_and_batch_norm_have_the_same_parameters_and_only_batch_norm_has_statistics() -> None:
    with torch.device("meta"):
        group, batch = (vgg16(norm=norm).phase_module(Phase(4, 1)) for norm in ("group", "batch"))
    shapes = [{name: p.shape for name, p in module.named_parameters()} for module in (group, batch)]
    assert shapes[0] == shapes[1]
    assert set(state(group)) == set(shapes[0])
    statistics = set(state(batch)) - set(shapes[1])
    assert len(statistics) == 2 * 13
    assert {name.rsplit(".", 1)[1] for name in statistics} == {"running_mean", "running_var"}


def test_larger_images_are_averaged_before_the_classifier() -> None:
    assert vgg16(classes=5, norm="group").at(4)(torch.rand(1, 3, 64, 64)).shape == (1, 5)


@pytest.mark.parametrize("norm", ["layer", "", "Group"])
def test_an_unknown_norm_is_refused_before_anything_is_made(norm: str) -> None:
    with pytest.raises(UsageError, match="'group' and 'batch'"):
        vgg16(norm=norm)


@pytest.mark.parametrize("stages", [0, 6, -1])
def test_an_impossible_number_of_stages_is_refused_with_the_possible_ones(stages: int) -> None:
    with pytest.raises(UsageError, match=f"vgg19 has no cut into {stages} stages: choose one of 1, 2, 3, 4, 5"):
        vgg19(stages=stages)


def test_a_model_without_classes_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 1 class"):
        vgg16(classes=0)
