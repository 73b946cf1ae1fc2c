"""U-Nets: both growths, 2D and 3D, any size."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from progfed.blocks import Progressive, load, state
from progfed.errors import UsageError
from progfed.models import unet
from progfed.schedule import Phase
from progfed.tensors import Tensors

WIDTHS = (4, 6, 8, 8, 12)
SHAPES = {2: (2, 2, 19, 13), 3: (2, 2, 9, 12, 7)}


def small(growth: str, *, dims: int = 3, **options: object) -> Progressive:
    return unet(**{"growth": growth, "dims": dims, "widths": WIDTHS, "in_channels": 2, "size": 8, **options})


def inputs(dims: int) -> Tensor:
    return torch.randn(SHAPES[dims], generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def by_layer(tensors: Tensors) -> Tensors:
    """`E4.dec1.conv1.weight` -> `dec1.conv1.weight`: the name without the block, which depends on the growth."""
    return {name.split(".", 1)[1]: value for name, value in tensors.items()}


def convolved(features: Tensor, weights: Tensors, name: str) -> Tensor:
    convolve = functional.conv2d if features.dim() == 4 else functional.conv3d
    for layer in "12":
        features = convolve(features, weights[f"{name}.conv{layer}.weight"], padding=1)
        width = features.shape[1]
        groups = {4: 2, 6: 2, 8: 4, 12: 4}[width]
        shape = (1, width, *[1] * (features.dim() - 2))
        grouped = features.reshape(len(features), groups, -1)
        spread = (grouped.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
        features = ((grouped - grouped.mean(2, keepdim=True)) / spread).reshape(features.shape)
        scale, shift = (weights[f"{name}.norm{layer}.{part}"].reshape(shape) for part in ("weight", "bias"))
        features = (features * scale + shift).clamp(min=0)
    return features


def with_zeros(weights: Tensors, images: Tensor, depth: int) -> Tensor:
    """The outer `depth` levels of a U-Net of five, where everything that would come from inside them is zero."""
    pool = functional.max_pool2d if images.dim() == 4 else functional.max_pool3d
    raise_ = functional.conv_transpose2d if images.dim() == 4 else functional.conv_transpose3d
    skips = [convolved(images, weights, "enc1")]
    for level in range(2, depth + 1):
        skips.append(convolved(pool(skips[-1], 2, ceil_mode=True), weights, f"enc{level}"))
    current = skips[-1]
    if depth < len(WIDTHS):
        current = convolved(torch.cat((current, torch.zeros_like(current)), 1), weights, f"dec{depth}")
    for level in range(depth - 1, 0, -1):
        skip = skips[level - 1]
        up = raise_(current, weights[f"up{level + 1}.weight"], weights[f"up{level + 1}.bias"], stride=2)
        for axis, length in enumerate(skip.shape[2:], start=2):
            up = up.narrow(axis, 0, length)
        current = convolved(torch.cat((skip, up), 1), weights, f"dec{level}")
    kernel = weights["out.weight"].flatten(1)
    return torch.einsum("ow,bw...->bo...", kernel, current) + weights["out.bias"].reshape(
        1, -1, *[1] * (images.dim() - 2)
    )


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(("stage", "depth"), [(1, 1), (2, 2), (3, 3), (4, 5)])
def test_a_symmetric_stage_is_the_full_model_with_zeros_for_the_levels_not_grown_yet(
    dims: int, stage: int, depth: int
) -> None:
    module = small("symmetric", dims=dims).at(stage).double()
    expected = with_zeros(by_layer(state(module)), inputs(dims), depth)
    torch.testing.assert_close(module(inputs(dims)), expected)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("stages", [3, 4, 5])
def test_the_full_model_is_the_same_function_in_both_growths(dims: int, stages: int) -> None:
    symmetric = small("symmetric", dims=dims, stages=stages).at(stages)
    model = small("asymmetric", dims=dims, stages=stages)
    asymmetric = model.phase_module(Phase(stages, 1))
    weights = by_layer(state(symmetric))
    names = {name: name.split(".", 1)[1] for name in state(asymmetric)}
    assert sorted(names.values()) == sorted(weights)
    load(asymmetric, {name: weights[layer] for name, layer in names.items()})
    images = inputs(dims).float()
    assert torch.equal(asymmetric(images), symmetric(images))


def test_a_symmetric_stage_leaves_the_weights_for_absent_features_without_gradient() -> None:
    module = small("symmetric").at(2)
    module(inputs(3).float()).square().sum().backward()
    gradient = module.get_parameter("E2.dec2.conv1.weight").grad
    assert gradient is not None
    assert gradient[:, :6].abs().amin((0, 2, 3, 4)).any()
    assert not gradient[:, 6:].any()
    outer = module.get_parameter("E1.dec1.conv1.weight").grad
    assert outer is not None
    assert outer[:, 4:].any()


def test_the_symmetric_head_is_one_and_the_same_at_every_stage() -> None:
    model = small("symmetric")
    assert [[name for name in state(model.at(s)) if name.startswith("G")] for s in (1, 2, 3, 4)] == [
        ["G.out.weight", "G.out.bias"]
    ] * 4


@pytest.mark.parametrize("growth", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("dims", [2, 3])
def test_every_head_begins_with_the_given_bias_and_nothing_else_changes(growth: str, dims: int) -> None:
    bias = (-0.1, -3.0, -4.0)
    for stage in (1, 2, 3, 4):
        given, plain = (state(small(growth, dims=dims, **options).at(stage)) for options in ({"bias": bias}, {}))
        name = next(name for name in given if name.endswith("out.bias"))
        torch.testing.assert_close(given.pop(name), torch.tensor(bias))
        assert not torch.equal(plain.pop(name), torch.tensor(bias))
        assert given.keys() == plain.keys()
        assert all(torch.equal(given[name], plain[name]) for name in plain)


@pytest.mark.parametrize(("stage", "level"), [(1, 5), (2, 4), (3, 3)])
def test_a_temporary_head_upsamples_the_logits_of_its_level(stage: int, level: int) -> None:
    """Linear upsampling of a ramp is the ramp at the centres of the finer cells, and constant beyond the outer ones."""
    model = small("asymmetric", dims=2)
    cells, scale = 64 // 2 ** (level - 1), 2 ** (level - 1)
    ramp = torch.arange(cells, dtype=torch.float64).view(1, 1, cells, 1).expand(1, WIDTHS[level - 1], cells, cells)
    head = model.make(f"G{stage}").double()
    logits = head((ramp, torch.zeros(1, 1, 64, 64)))
    centres = ((torch.arange(64, dtype=torch.float64) + 0.5) / scale - 0.5).clamp(0, cells - 1)
    expected = head.out.weight.sum((1, 2, 3)).view(1, 3, 1, 1) * centres.view(1, 1, 64, 1) + head.out.bias.view(
        1, 3, 1, 1
    )
    torch.testing.assert_close(logits, expected.expand(1, 3, 64, 64))


def test_the_asymmetric_blocks_are_the_encoder_and_then_the_decoder_from_inside_out() -> None:
    model = small("asymmetric")
    blocks = [[name for name, _ in model.make(f"E{stage}").named_children()] for stage in (1, 2, 3, 4)]
    assert blocks == [
        ["enc1", "enc2", "enc3", "enc4", "enc5"],
        ["up5", "dec4"],
        ["up4", "dec3"],
        ["up3", "dec2", "up2", "dec1"],
    ]


@pytest.mark.parametrize(
    ("stages", "levels"),
    [(4, ["1", "2", "3", "45"]), (5, ["1", "2", "3", "4", "5"]), ((2, 1, 1, 1), ["12", "3", "4", "5"]), (1, ["12345"])],
)
def test_symmetric_blocks_hold_whole_levels_from_outside_in(stages: object, levels: list[str]) -> None:
    model = small("symmetric", stages=stages)
    blocks = [dict(model.make(f"E{stage}").named_children()) for stage in range(1, model.stages + 1)]
    assert ["".join(name[3:] for name in block if name.startswith("enc")) for block in blocks] == levels
    decoded = "".join(name[3:] for block in blocks for name in block if name.startswith("dec"))
    raised = "".join(name[2:] for block in blocks for name in block if name.startswith("up"))
    assert (decoded, raised) == ("1234", "2345")


@pytest.mark.parametrize("growth", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("shape", [(35, 51, 35), (1, 1, 1), (2, 1, 33), (16, 16, 16)])
def test_any_volume_gives_logits_of_its_own_shape_at_every_stage(growth: str, shape: tuple[int, ...]) -> None:
    model = small(growth, in_channels=1)
    for stage in range(1, 5):
        logits = model.at(stage)(torch.rand(1, 1, *shape))
        assert logits.shape == (1, 3, *shape)
        assert logits.isfinite().all()


@pytest.mark.parametrize("widths", [(3, 5), (1, 2, 4), (7, 9, 11, 13, 15, 17)])
@pytest.mark.parametrize("growth", ["symmetric", "asymmetric"])
def test_any_widths_and_depth_work(growth: str, widths: tuple[int, ...]) -> None:
    model = small(growth, widths=widths, stages=2, regions=2)
    assert [model.at(stage)(torch.rand(2, 2, 10, 7, 5)).shape for stage in (1, 2)] == [(2, 2, 10, 7, 5)] * 2


@pytest.mark.parametrize(
    ("dims", "size", "shape"), [(3, 128, (128,) * 3), (3, (36, 50, 35), (36, 50, 35)), (2, 64, (64, 64))]
)
def test_the_example_has_the_asked_size_and_takes_no_memory(dims: int, size: object, shape: tuple[int, ...]) -> None:
    example = small("symmetric", dims=dims, size=size).example
    assert (example.shape, example.device.type) == ((1, 2, *shape), "meta")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"growth": "sideways"}, "growth is 'sideways'"),
        ({"dims": 4}, "2 or 3 dimensions, not 4"),
        ({"widths": (8,)}, "two or more positive widths"),
        ({"widths": (8, 0)}, "two or more positive widths"),
        ({"regions": 0}, "positive channels and regions"),
        ({"bias": (0.0, 1.0)}, "must be a number for each of the 3 regions"),
        ({"size": (8, 8)}, "must be 3 positive numbers"),
        ({"size": 0}, "must be 3 positive numbers"),
        ({"stages": 6}, "stages=6 does not cut a U-Net of 5 levels: give a number from 1 to 5"),
        ({"stages": 0}, "stages=0 does not cut"),
        ({"stages": (1, 2)}, "whose sum is 5"),
        ({"stages": ()}, "whose sum is 5"),
        ({"stages": (6, -1)}, "whose sum is 5"),
        ({"growth": "asymmetric", "stages": 1}, "stages=1 does not cut a U-Net of 5 levels: give a number from 2 to 5"),
        ({"growth": "asymmetric", "stages": 6}, "stages=6 does not cut"),
        ({"growth": "asymmetric", "stages": (1, 1, 1, 2)}, "whose sum is 4"),
    ],
)
def test_a_unet_that_makes_no_sense_is_refused_with_one_sentence(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small(**{"growth": "symmetric", **options})
