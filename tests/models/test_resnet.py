"""ResNet-18, 34, 50 and 152."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed.blocks import Progressive, state
from progfed.errors import UsageError
from progfed.models import resnet18, resnet34, resnet50, resnet152
from progfed.schedule import Phase
from progfed.tensors import Tensors


def on_meta(model: Progressive, stage: int) -> nn.Module:
    with torch.device("meta"):
        return model.phase_module(Phase(stage, 1))


def without_block(tensors: Tensors) -> Tensors:
    """`E2.conv3a.…` -> `conv3a.…`: the same name whatever the number of stages."""
    return {name.split(".", 1)[1]: value for name, value in tensors.items()}


def normed(inputs: Tensor, weights: Tensors, conv: str, norm: str, stride: int = 1) -> Tensor:
    kernel = weights[f"{conv}.weight"]
    outputs = functional.conv2d(inputs, kernel, stride=stride, padding=kernel.shape[2] // 2)
    return functional.group_norm(outputs, 2, weights[f"{norm}.weight"], weights[f"{norm}.bias"])


def basic(inputs: Tensor, weights: Tensors, name: str, stride: int) -> Tensor:
    body = normed(inputs, weights, f"{name}.body.0", f"{name}.body.1", stride).relu()
    body = normed(body, weights, f"{name}.body.3", f"{name}.body.4")
    if f"{name}.shortcut.0.weight" in weights:
        inputs = normed(inputs, weights, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
    return (body + inputs).relu()


def bottleneck(inputs: Tensor, weights: Tensors, name: str, stride: int) -> Tensor:
    body = normed(inputs, weights, f"{name}.body.0", f"{name}.body.1").relu()
    body = normed(body, weights, f"{name}.body.3", f"{name}.body.4", stride).relu()
    body = normed(body, weights, f"{name}.body.6", f"{name}.body.7")
    if f"{name}.shortcut.0.weight" in weights:
        inputs = normed(inputs, weights, f"{name}.shortcut.0", f"{name}.shortcut.1", stride)
    return (body + inputs).relu()


@pytest.mark.parametrize(
    ("make", "block", "halves"),
    [
        (resnet18, basic, ((1, 1), (1, 1), (1, 1), (1, 1))),
        (resnet34, basic, ((2, 1), (2, 2), (3, 3), (2, 1))),
        (resnet50, bottleneck, ((2, 1), (2, 2), (3, 3), (2, 1))),
    ],
)
def test_the_full_model_is_the_residual_network_written_out(
    make: Callable[..., Progressive], block: Callable[..., Tensor], halves: tuple[tuple[int, int], ...]
) -> None:
    module = make(classes=7).at(4).eval()
    weights = without_block(state(module))
    images = torch.rand(2, 3, 24, 24)
    hidden = normed(images, weights, "conv2a.stem.0", "conv2a.stem.1").relu()
    for number, counts in enumerate(halves, start=2):
        for half, count in zip("ab", counts, strict=True):
            for index in range(1, count + 1):
                first = half == "a" and index == 1 and number > 2
                hidden = block(hidden, weights, f"conv{number}{half}.block{index}", 2 if first else 1)
    expected = hidden.mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]
    torch.testing.assert_close(module(images), expected)


def test_every_cut_gives_the_same_full_model() -> None:
    images = torch.rand(2, 3, 16, 16)
    whole = resnet18().at(4).eval()
    weights = without_block(state(whole))
    for stages in (1, 2, 3, 5, 8):
        module = resnet18(stages=stages).phase_module(Phase(stages, 1)).eval()
        assert set(without_block(state(module))) == set(weights)
        with torch.no_grad():
            for name, value in state(module).items():
                value.copy_(weights[name.split(".", 1)[1]])
        assert torch.equal(module(images), whole(images))


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (2, ["2a2b3a3b", "4a4b5a5b"]),
        (3, ["2a2b", "3a3b4a4b", "5a5b"]),
        (4, ["2a2b", "3a3b", "4a4b", "5a5b"]),
        (5, ["2a", "2b3a", "3b4a", "4b5a", "5b"]),
        (8, ["2a", "2b", "3a", "3b", "4a", "4b", "5a", "5b"]),
    ],
)
@pytest.mark.parametrize("make", [resnet18, resnet34, resnet50, resnet152])
def test_blocks_hold_the_halves_of_the_components_in_order(
    make: Callable[..., Progressive], stages: int, expected: list[str]
) -> None:
    module = on_meta(make(stages=stages), stages)
    blocks = [module.get_submodule(f"E{stage}") for stage in range(1, stages + 1)]
    assert ["".join(name.removeprefix("conv") for name, _ in b.named_children()) for b in blocks] == expected


@pytest.mark.parametrize(("make", "depth"), [(resnet18, 18), (resnet34, 34), (resnet50, 50), (resnet152, 152)])
def test_the_number_in_the_name_counts_the_layers_with_weights_on_the_longest_path(
    make: Callable[..., Progressive], depth: int
) -> None:
    names = [name for name, m in on_meta(make(), 4).named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert sum("shortcut" not in name for name in names) == depth


def test_batch_norm_changes_no_parameter_and_adds_statistics() -> None:
    group, batch = on_meta(resnet18(), 4), on_meta(resnet18(norm="batch"), 4)
    assert {n: p.shape for n, p in group.named_parameters()} == {n: p.shape for n, p in batch.named_parameters()}
    assert set(state(batch)) - set(state(group)) == {
        f"{name}.{kind}"
        for name, module in batch.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for kind in ("running_mean", "running_var")
    }


@pytest.mark.parametrize("make", [resnet18, resnet152])
@pytest.mark.parametrize("stages", [0, 6, 7, 9])
def test_an_impossible_number_of_stages_is_refused_with_the_possible_ones(
    make: Callable[..., Progressive], stages: int
) -> None:
    with pytest.raises(UsageError, match=f"no cut into {stages} stages: choose one of 1, 2, 3, 4, 5, 8"):
        make(stages=stages)


def test_a_residual_network_without_a_norm_is_refused() -> None:
    with pytest.raises(UsageError, match="norm is None"):
        resnet18(norm=None)


def test_a_width_scales_the_channels_of_every_block() -> None:
    whole, quarter = (on_meta(resnet18(10, width=width), 4) for width in (64, 16))
    for (name, value), other in zip(state(whole).items(), state(quarter).values(), strict=True):
        channels = [size // 4 if size >= 64 else size for size in value.shape]
        assert list(other.shape) == channels, name
    assert sum(value.numel() for value in state(quarter).values()) == 701_466
