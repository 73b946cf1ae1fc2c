"""Models as people have them: shorter floating types, several outputs, outputs without logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

from progfed import split


class Heads(nn.Module):
    """Two outputs, of which the second is for something else; `form` says what holds them."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.one, self.two, self.out, self.aside = (nn.Linear(4, 4) for _ in range(4))
        self.form = form

    def forward(self, inputs: Tensor) -> Any:
        features = self.two(self.one(inputs).relu()).relu()
        return self.form(self.out(features), self.aside(features))


@pytest.mark.parametrize(
    "form",
    [
        lambda main, other: (main, other),
        lambda main, other: [None, main, other],
        lambda main, other: {"scores": main, "other": other},
        lambda main, other: {"other": other, "logits": main},
        lambda main, other: transformers.modeling_outputs.SequenceClassifierOutput(logits=main, hidden_states=(other,)),
        lambda main, other: transformers.modeling_outputs.BaseModelOutput(last_hidden_state=main, attentions=(other,)),
    ],
)
def test_of_several_outputs_the_logits_or_else_the_first_tensor_is_trained(form: Any) -> None:
    net, inputs = Heads(form), torch.randn(3, 4)
    module = split(net, stages=2, example=inputs).at(2)
    assert torch.equal(module(inputs), net.out(net.two(net.one(inputs).relu()).relu()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_another_type_are_trained_in_float32_and_come_back_as_they_were(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    net[3].to(dtype)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.warns(UserWarning, match=rf"has {str(dtype)[6:]}: trained as float32, exported as {str(dtype)[6:]}"):
        model = split(net, stages=2, example=torch.randn(3, 4))
    params = {name: value for part in ("E1", "E2", "G2") for name, value in model.init(part, seed=0).items()}
    assert {value.dtype for value in params.values()} == {torch.float32}
    exported = model.export(params)
    net.load_state_dict(exported, strict=True)
    assert {name: value.dtype for name, value in exported.items()} == {n: v.dtype for n, v in before.items()}
    assert all(torch.equal(value, before[name]) for name, value in exported.items())


def test_a_checkpoint_of_transformers_in_bfloat16_can_be_split() -> None:
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, num_labels=4
    )
    net = transformers.BertForSequenceClassification(config).to(torch.bfloat16)
    with pytest.warns(UserWarning, match="has bfloat16"):
        model = split(net, stages=2, example={"input_ids": torch.arange(12).view(2, 6)})
    assert model.dtypes["classifier.weight"] is torch.bfloat16
    assert net.dtype is torch.bfloat16  # the user's own is as it was
