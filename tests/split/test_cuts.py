"""Where models are cut, which heads they get, and every refusal with its reason and the nearest cut."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from progfed import Progressive, split
from progfed.blocks import state
from progfed.errors import UsageError
from progfed.split.cuts import balanced
from zoo import GPT, VGG, ResNet, ViT, images, tokens


def small_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


GREY = torch.rand(2, 1, 8, 8)


def cuts_of(model: Progressive) -> list[str]:
    return list(model.wire.cuts)  # type: ignore[attr-defined]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=7), st.data())
def test_balanced_blocks_are_as_equal_as_those_of_any_other_way(sizes: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(0, len(sizes) - 1))

    def spread(borders: Any) -> int:
        ends = [0, *borders, len(sizes)]
        return sum(sum(sizes[a:b]) ** 2 for a, b in itertools.pairwise(ends))

    least, borders = balanced(sizes, number)
    assert least == spread(borders) == min(map(spread, itertools.combinations(range(1, len(sizes)), number)))


def test_a_sequential_model_is_cut_after_an_activation_and_before_it_is_flattened() -> None:
    net = small_net()
    model = split(net, stages=3, example=GREY)
    assert cuts_of(model) == ["1", "3"]
    assert torch.equal(model.at(3)(GREY), net(GREY))
    pooled = split(net, stages=3, example=GREY, heads="pooled")
    assert [tuple(pooled.make(f"G{s}").fc.weight.shape) for s in (1, 2)] == [(5, 4), (5, 8)]  # type: ignore[union-attr]


def test_indices_of_a_sequential_model_open_blocks() -> None:
    model = split(small_net(), stages=2, example=GREY, cuts=(2,), head=3)
    assert cuts_of(model) == ["1"]
    assert {name.split(".")[1] for name in model.init("E2", seed=0)} == {"2"}
    assert {name.split(".")[1] for name in model.init("G2", seed=0)} == {"5", "7"}


def test_named_cuts_and_heads_decide_which_tensors_belong_where() -> None:
    model = split(ResNet(), stages=2, example=images(2), cuts=("layer1",), head=("layer3", "fc"))
    parts = {part: {name.split(".")[1] for name in model.init(part, seed=0)} for part in ("E1", "E2", "G2")}
    assert parts == {"E1": {"conv1", "bn1", "layer1"}, "E2": {"layer2"}, "G2": {"layer3", "fc"}}


def test_a_class_token_and_position_embeddings_belong_to_the_first_block() -> None:
    model = split(ViT(), stages=2, example=images(2), cuts=("blocks.1",))
    assert {"E1.cls_token", "E1.pos_embed", "E1.patch.weight"} < set(model.init("E1", seed=0))


def test_a_tied_weight_lives_once_in_the_block_that_uses_it_first() -> None:
    model = split(GPT(), stages=2, example=tokens(2))
    names = [name for name in state(model.at(2)) if name.endswith(("wte.weight", "lm_head.weight"))]
    assert names == ["E1.wte.weight"]
    exported = model.export(state(model.at(2)))
    assert torch.equal(exported["lm_head.weight"], exported["wte.weight"])


def test_flops_and_parameters_are_balanced_differently() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(8),
        nn.Conv2d(16, 64, 1), nn.ReLU(), nn.Conv2d(64, 64, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5),
    )  # fmt: skip
    assert cuts_of(split(net, stages=2, example=images(2), balance="flops")) == ["1"]
    assert cuts_of(split(net, stages=2, example=images(2), balance="params")) == ["6"]  # 3856 and 4160


class ChannelsLast(nn.Module):
    """Features `[batch, height, width, channels]`, as Swin has them."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        return self.head(self.two(self.one(x).relu()).relu().mean((1, 2)))


def test_the_layer_that_made_the_features_tells_which_axis_has_the_channels() -> None:
    model = split(ChannelsLast(), stages=2, example=images(2), cuts=("one",))
    head = model.make("G1")
    features = torch.randn(2, 4, 4, 8)
    expected = head.fc(head.norm(features).mean((1, 2)))  # type: ignore[operator, union-attr]
    assert torch.allclose(head(features), expected, atol=1e-6)
    first = split(ChannelsLast(), stages=2, example=images(2), cuts=("one",), channels="first").make("G1")
    assert first.fc.in_features == 4  # type: ignore[union-attr]


def test_own_heads_are_used_as_they_are_or_made_anew_from_the_seed() -> None:
    given_head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
    options: dict[str, Any] = {"stages": 2, "example": images(2), "cuts": ("layer1",)}
    model = split(ResNet(), heads=[given_head], **options)
    assert torch.equal(model.init("G1", seed=7)["G1.2.weight"], given_head[2].weight)
    model = split(
        ResNet(), heads=[lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))], **options
    )
    first, second, again = (model.init("G1", seed=seed)["G1.2.weight"] for seed in (0, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_temporary_heads_begin_with_the_given_bias_and_the_models_own_as_it_is() -> None:
    bias, net = (-3.0, -0.1, -2.0, -4.0, -5.0), ResNet()
    options: dict[str, Any] = {"stages": 2, "example": images(2), "cuts": ("layer1",)}
    model, plain = (split(net, **more, **options) for more in ({"bias": bias}, {}))
    (last,) = (value for name, value in model.init("G1", seed=0).items() if name.endswith("bias"))
    torch.testing.assert_close(last, torch.tensor(bias))
    assert {name: value.tolist() for name, value in model.init("G2", seed=0).items()} == {
        name: value.tolist() for name, value in plain.init("G2", seed=0).items()
    }
    assert model.name != plain.name  # other runs: one is not continued as the other


def test_a_bias_that_no_head_can_take_is_refused() -> None:
    with pytest.raises(UsageError, match="has 2 numbers, and a head has no bias of as many"):
        split(ResNet(), stages=2, example=images(2), bias=(0.0, 1.0))


class Odd(nn.Module):
    """Everything that is no cut, in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.early, self.never, self.pair = nn.Linear(4, 4), nn.Linear(4, 4), Pair()
        self.start = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        side = self.early(x)
        x = self.twice(self.twice(self.first(self.start(x)))).relu()
        return self.last(self.pair(x)["x"] + side)


class Pair(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x.tanh()}


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ("layer9", r"no module 'layer9': did you mean layer3.*it may be cut after 'maxpool'"),
        (
            "layer1.0.conv1",
            r"'layer1.0.conv1' cannot end a block: a residual or skip connection goes past it; the near",
        ),
        ("layer2.1.bn2", r"residual or skip connection goes past it; the nearest possible cut is 'layer2'"),
        ("layer1.0.relu", r"the forward calls it 2 times; the nearest possible cut is 'layer1.0'"),
        ("fc", r"'fc' cannot end a block: nothing that learns comes after it; the nearest possible cut is 'layer2'"),
        ("layer3", r"nothing but the final head comes after 'layer3'; the nearest possible cut is 'layer2'"),
    ],
)
def test_a_name_that_is_no_cut_is_refused_with_the_reason_and_the_nearest_one(cut: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(ResNet(), stages=2, example=images(2), cuts=(cut,))


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        ("never", "the forward does not call it"),
        ("twice", "calls it 2 times"),
        ("pair", "it returns dict, not a tensor"),
        ("start", "nothing that learns comes before its output"),
        ("first", "early.bias is used before it, but only what comes after needs the result"),
    ],
)
def test_every_other_reason_is_given_too(cut: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(Odd(), stages=2, example=torch.randn(2, 4), cuts=(cut,))


class Raises(nn.Module):
    def __init__(self, output: Any) -> None:
        super().__init__()
        self.layer, self.output = nn.Linear(4, 4), output

    def forward(self, x: Tensor) -> Any:
        return self.output(self.layer(x))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (small_net(), {"stages": 8}, "1 to 3 stages, not 8: it may be cut after '1', '3'"),
        (small_net(), {"stages": 0}, "1 to 3 stages, not 0"),
        (small_net(), {"stages": 3, "cuts": (2,)}, "3 stages need 2 cuts, not 1"),
        (small_net(), {"stages": 2, "cuts": (9,)}, "increasing indices between 1 and 7"),
        (small_net(), {"stages": 3, "cuts": ("3", "1")}, "in the order of the forward"),
        (small_net(), {"stages": 2, "head": 9}, "counts the last children"),
        (small_net(), {"stages": 2, "balance": "time"}, "'params' or 'flops', not 'time'"),
        (small_net(), {"stages": 2, "head": "top"}, "no module 'top' to be the head"),
        (small_net(), {"stages": 2, "head": "1"}, "none of the parameters that learn"),
        (small_net(), {"stages": 2, "heads": []}, "need 1 temporary heads, not 0"),
        (
            small_net(),
            {"stages": 2, "heads": [nn.Flatten()]},
            r"head of stage 1 gives \[2, 128\] where the model gives",
        ),
        (small_net(), {"stages": 2, "heads": [nn.Linear(1, 5)]}, "sub-model of stage 1 fails on the example"),
        (small_net(), {"stages": 2, "task": "tokens"}, "no temporary head for 'tokens' leads from features"),
        (nn.Linear(8, 2), {"stages": 1}, "cannot be split: no module of this model may end a block"),
        (nn.LazyLinear(2), {"stages": 1}, "lazy layers"),
        (nn.Sequential(nn.Linear(7, 2), nn.Linear(2, 2)), {"stages": 1}, "fails on the example"),
        (
            Raises(lambda x: ("no", 3)),
            {"stages": 1, "example": torch.ones(2, 4)},
            "returns tuple, in which",
        ),
        (Raises(lambda x: x.detach()), {"stages": 1, "example": torch.ones(2, 4)}, "no gradient reaches"),
        (VGG(), {"stages": 2, "cuts": (1,), "example": images(2)}, "no nn.Sequential: name the module"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(model: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        split(model, **{"example": GREY, **options})
    assert "\n" not in str(caught.value)


class Counting(nn.Module):
    """Gives something else in every call, whatever the input."""

    count = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)) * next(self.count)


def test_a_model_that_is_no_function_of_its_input_is_refused() -> None:
    with pytest.raises(UsageError, match="two runs of the model on the example differ"):
        split(Counting(), stages=1, example=torch.ones(2, 4))
