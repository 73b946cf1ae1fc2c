"""Temporary heads on a grid: what they compute, what they may cost, and who has them by default."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from progfed.blocks import Pooled, Progressive, state
from progfed.client.replica import Replica
from progfed.costs.memory import phase_memory
from progfed.costs.phase import phase_cost
from progfed.errors import UsageError
from progfed.heads import SHARE, Grid, fitted_grid, grid_head, with_heads
from progfed.models import convnet_cifar, convnet_mnist, resnet18, vgg16
from progfed.recipe.recipe import Local
from progfed.schedule import Phase
from progfed.split import split

IMAGES = torch.rand(2, 3, 16, 16)


def convnet(classes: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 64, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(6400, 32), nn.ReLU(), nn.Linear(32, classes)),
    )


def test_a_grid_head_is_the_averages_over_its_cells_and_one_layer() -> None:
    head, features = grid_head(4, 3, (2, 2))(), torch.rand(2, 4, 6, 8)
    cells = features.unflatten(3, (2, 4)).unflatten(2, (2, 3)).mean((3, 5)).flatten(1)
    torch.testing.assert_close(head(features), functional.linear(cells, *state(head).values()))


@pytest.mark.parametrize("places", [(7,), (5, 3), (1, 9), (3, 5, 2), (1, 1)])
def test_any_number_of_positions_fits_any_grid(places: tuple[int, ...]) -> None:
    head = Grid(4, 3, (2,) * len(places))
    assert head(torch.rand(2, 4, *places)).shape == (2, 3)
    tokens = Grid(4, 3, (2,) * len(places), last=True)
    assert tokens(torch.rand(2, *places, 4)).shape == (2, 3)


def test_tokens_are_normed_and_pooled_along_their_axis() -> None:
    head, tokens = Grid(6, 3, (2,), last=True), torch.rand(2, 8, 6)
    halves = functional.layer_norm(tokens, (6,)).unflatten(1, (2, 4)).mean(2).transpose(1, 2).flatten(1)
    torch.testing.assert_close(head(tokens), functional.linear(halves, head.fc.weight, head.fc.bias))


def test_many_classes_leave_room_for_fewer_channels_which_every_cell_projects_to_alike() -> None:
    head, features = Grid(6, 3, (2, 2), width=2), torch.rand(2, 6, 4, 4)
    before = functional.conv2d(features, head.project.weight[:, :, None, None], head.project.bias)
    cells = functional.avg_pool2d(before, 2).flatten(2).transpose(1, 2).flatten(1)
    torch.testing.assert_close(head(features), functional.linear(cells, head.fc.weight, head.fc.bias))


def test_the_grid_is_the_largest_that_has_room() -> None:
    rooms = {room: fitted_grid((8, 8), 32, 10, room) for room in (5_130, 5_129, 1_554, 1_553, 994, 993, 594, 593)}
    assert list(rooms.values()) == [
        *(((4, 4), None), ((4, 4), 26), ((4, 4), 8)),
        *(((3, 3), 12), ((3, 3), 8), ((2, 2), 13), ((2, 2), 8), None),
    ]
    assert fitted_grid((64,), 8, 2, 1e6) == ((16,), None)
    assert fitted_grid((9, 9, 9), 8, 2, 1e6) == ((2, 2, 2), None)
    assert fitted_grid((3, 1), 8, 2, 1e6) == ((3, 1), None)
    assert fitted_grid((1, 1), 8, 2, 1e6) is fitted_grid((), 8, 2, 1e6) is None


@given(
    places=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    channels=st.integers(1, 300),
    classes=st.integers(1, 300),
    room=st.integers(0, 100_000),
)
def test_a_fitted_head_never_has_more_parameters_than_its_room(
    places: list[int], channels: int, classes: int, room: int
) -> None:
    if fitted := fitted_grid(places, channels, classes, room):
        with torch.device("meta"):
            head = Grid(channels, classes, fitted[0], width=fitted[1])
        assert sum(parameter.numel() for parameter in head.parameters()) <= room


@pytest.mark.parametrize("make", [convnet_mnist, convnet_cifar, resnet18, vgg16])
@pytest.mark.parametrize("classes", [10, 100])
def test_no_grid_costs_more_than_its_share_of_the_model(make: type[Progressive], classes: int) -> None:
    pooled, grid = make(classes=classes), make(classes=classes, heads="grid")
    whole = phase_cost(grid, Phase(grid.stages, 1))
    assert whole == phase_cost(pooled, Phase(pooled.stages, 1))
    for stage in range(1, grid.stages):
        with torch.device("meta"):
            head = grid.make(f"G{stage}")
        cost = sum(parameter.numel() for parameter in head.parameters())
        assert isinstance(head, Pooled) or cost <= SHARE * whole.parameters
        assert phase_cost(grid, Phase(stage, 1)).parameters >= phase_cost(pooled, Phase(stage, 1)).parameters


def test_a_model_of_ones_own_has_grids_unless_it_asks_for_pooled_heads() -> None:
    found = {kind: split(convnet(), stages=3, example=IMAGES, heads=kind) for kind in ("grid", "pooled")}
    assert split(convnet(), stages=3, example=IMAGES).name == found["grid"].name != found["pooled"].name
    assert isinstance(found["grid"].make("G1"), Grid)
    assert isinstance(found["pooled"].make("G1"), Pooled)


def test_many_classes_get_narrow_cells_then_a_smaller_grid_then_a_pooled_head() -> None:
    found = [split(convnet(classes), stages=3, example=IMAGES).make("G1") for classes in (10, 150, 300, 20_000)]
    assert [getattr(head, "grid", ()) for head in found] == [(4, 4), (4, 4), (3, 3), ()]
    assert [hasattr(head, "project") for head in found] == [False, True, True, False]


def test_a_grid_trains_in_the_fast_layout_and_is_counted() -> None:
    model = convnet_cifar(heads="grid")
    replica = Replica(model, Phase(1, 1), "cpu")
    images = torch.rand(2, 3, 32, 32)
    replica.load(state(model.at(1)))
    torch.testing.assert_close(replica.module(images), model.at(1)(images))
    assert phase_memory(model, Phase(1, 1), Local()).peak > phase_memory(convnet_cifar(), Phase(1, 1), Local()).peak
    assert phase_cost(model, Phase(1, 1)).parameters - phase_cost(convnet_cifar(), Phase(1, 1)).parameters == 4800


def test_the_share_of_the_head_in_its_message_is_told() -> None:
    model = convnet_cifar(heads="grid")
    shares = [phase_cost(model, Phase(stage, 1)).head_share for stage in (1, 4)]
    assert shares == [5130 / (5130 + 896), 650 / 122_570]


def test_the_papers_heads_are_what_every_model_has_by_default() -> None:
    assert with_heads(model := convnet_cifar(), "pooled") is model
    assert isinstance(model.make("G1"), Pooled)
    assert model.name == "convnet-cifar" != convnet_cifar(heads="grid").name


def test_unknown_heads_and_impossible_grids_are_refused() -> None:
    with pytest.raises(UsageError, match="'grid' or 'pooled'"):
        convnet_cifar(heads="gird")
    with pytest.raises(UsageError, match="'grid' or 'pooled'"):
        split(convnet(), stages=3, example=IMAGES, heads="gird")
    with pytest.raises(UsageError, match="1 to 3 sides"):
        grid_head(4, 3, (0, 2))()
