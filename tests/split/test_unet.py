"""U-Nets by description: both growths against the same computation by hand, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from progfed import Phase, rng, split
from progfed.costs.phase import per_example
from progfed.errors import UsageError
from progfed.split import UNet
from zoo import PlainUNet, levels


def made(growth: str, stages: int = 3):  # type: ignore[no-untyped-def]
    with rng.default(0, "zoo"):
        net, inputs = PlainUNet(), torch.randn(2, 2, 16, 16)
    return net, split(net, stages=stages, example=inputs, unet=levels(growth)), inputs


def test_symmetric_growth_begins_with_the_outer_level_and_nothing_inside_it() -> None:
    net, model, inputs = made("symmetric")
    outer = net.enc1(inputs)
    by_hand = net.out(net.dec1(torch.cat((torch.zeros(2, 4, 16, 16), outer), 1)))
    assert torch.equal(model.at(1)(inputs), by_hand)
    assert {name.split(".")[1] for name in model.init("E1", seed=0)} == {"enc1", "dec1"}
    assert {name.split(".")[1] for name in model.init("E2", seed=0)} == {"enc2", "dec2", "up1"}
    assert {name.split(".")[1] for name in model.init("E3", seed=0)} == {"mid", "up2"}


def test_absent_levels_cost_nothing() -> None:
    _, model, _ = made("symmetric")
    with rng.default(0, "zoo"):
        outer = nn.ModuleDict({"enc1": PlainUNet().enc1, "dec1": PlainUNet().dec1, "out": PlainUNet().out})
    products = sum(m.weight.numel() * 16 * 16 for m in outer.modules() if isinstance(m, nn.Conv2d))
    free = 2 * outer["enc1"][0].weight.numel() * 16 * 16  # no gradient for the image
    assert per_example(model, Phase(1, 1)) == 6 * products - free


def test_other_sizes_than_the_examples_work_at_every_stage() -> None:
    net, model, _ = made("symmetric")
    inputs = torch.randn(3, 2, 24, 32)
    assert [model.at(stage)(inputs).shape for stage in (1, 2)] == [(3, 3, 24, 32)] * 2
    assert torch.equal(model.at(3)(inputs), net(inputs))


def test_asymmetric_growth_begins_with_all_encoders_and_a_head_at_full_resolution() -> None:
    net, model, inputs = made("asymmetric")
    assert {name.split(".")[1] for name in model.init("E1", seed=0)} == {"enc1", "enc2", "mid"}
    assert {name.split(".")[1] for name in model.init("E2", seed=0)} == {"up2", "dec2"}
    module = model.at(1)
    inner = net.mid(functional.max_pool2d(net.enc2(functional.max_pool2d(net.enc1(inputs), 2)), 2))
    weight = module.get_parameter("G1.fc.weight")[:, :, None, None]
    scores = functional.conv2d(inner, weight, module.get_parameter("G1.fc.bias"))
    expected = functional.interpolate(scores, (16, 16), mode="bilinear")
    assert torch.allclose(module(inputs), expected, atol=1e-5)


@pytest.mark.parametrize("growth", ["symmetric", "asymmetric"])
def test_fewer_stages_put_the_inner_levels_or_last_decoders_together(growth: str) -> None:
    net, model, inputs = made(growth, stages=2)
    assert torch.equal(model.at(2)(inputs), net(inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"growth": "sideways"}, "'symmetric' or 'asymmetric'"),
        ({"decoders": ("dec1",)}, "2 encoders, 1 decoders"),
        ({"bottleneck": "middle"}, "no module 'middle'"),
        ({"ups": (), "growth": "symmetric"}, "up2.weight belongs to no module|up1.weight belongs to no module"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    unet = replace(levels("symmetric"), **change)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        split(PlainUNet(), stages=3, example=torch.zeros(2, 2, 16, 16), unet=unet)


def test_a_u_net_takes_no_more_stages_than_levels_and_no_other_cuts() -> None:
    for growth in ("symmetric", "asymmetric"):
        with pytest.raises(UsageError, match=f"to 3 stages in {growth} growth, not 4"):
            made(growth, stages=4)
    with pytest.raises(UsageError, match="give it alone"):
        split(PlainUNet(), stages=2, example=torch.zeros(1, 2, 16, 16), unet=levels("symmetric"), cuts=("mid",))


@pytest.mark.parametrize("options", [{"bias": (0.0, -1.0, -2.0)}, {"heads": [nn.Identity()]}])
def test_a_u_net_without_temporary_heads_takes_nothing_for_them(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="has no temporary heads: leave out `heads` and `bias`"):
        split(PlainUNet(), stages=2, example=torch.zeros(1, 2, 16, 16), unet=levels("symmetric"), **options)


class Shared(PlainUNet):
    """A U-Net that uses one decoder at both levels is none of the kind that can grow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.dec1(torch.cat((self.dec1(torch.cat((self.enc1(x), self.enc1(x)), 1)), self.enc1(x)), 1)))


def test_a_level_that_is_called_more_than_once_is_refused() -> None:
    unet = UNet(encoders=("enc1",), bottleneck="mid", decoders=("dec1",), head="out")
    with pytest.raises(UsageError, match="'enc1' 3 times"):
        split(Shared(), stages=2, example=torch.zeros(1, 2, 16, 16), unet=unet)
