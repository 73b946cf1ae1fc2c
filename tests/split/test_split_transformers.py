"""Models of the transformers package, as it makes them from a configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from progfed import Phase, rng, split
from progfed.blocks import state
from progfed.flops import phase_cost
from progfed.split.trace import call, logits

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 4}
IDS = torch.arange(24).view(2, 12) % 30


def bert() -> tuple[nn.Module, Any]:
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL)
    return transformers.BertForSequenceClassification(config), {
        "input_ids": IDS,
        "attention_mask": (IDS % 7 > 0).long(),
    }


def tagger() -> tuple[nn.Module, Any]:
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL)
    return transformers.BertForTokenClassification(config), {"input_ids": IDS}


def vit() -> tuple[nn.Module, Any]:
    config = transformers.ViTConfig(image_size=16, patch_size=4, **SMALL)
    return transformers.ViTForImageClassification(config), torch.linspace(-1, 1, 2 * 3 * 256).view(2, 3, 16, 16)


def gpt2() -> tuple[nn.Module, Any]:
    config = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=3, n_head=2)
    return transformers.GPT2LMHeadModel(config), IDS


@pytest.mark.parametrize(
    ("make", "cuts"),
    [
        (bert, ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
        (tagger, ["bert.encoder.layer.0", "bert.encoder.layer.1"]),
        (vit, ["vit.encoder.layer.0", "vit.encoder.layer.1"]),
        (gpt2, ["transformer.h.0", "transformer.h.1"]),
    ],
)
def test_a_real_transformer_is_split_between_its_layers_and_comes_back(make: Any, cuts: list[str]) -> None:
    with rng.default(0, "zoo"):
        net, inputs = make()
    model = split(net, stages=3, example=inputs)
    assert list(model.wire.cuts) == cuts  # type: ignore[attr-defined]
    whole = model.at(3)
    for training in (False, True):
        with rng.default(0, "dropout"):
            original = logits(call(net.train(training), inputs))
        with rng.default(0, "dropout"):
            assert torch.equal(whole.train(training)(inputs), original)
    for stage in (1, 2, 3):
        module = model.at(stage).train()
        learning = [p for p in module.parameters() if p.requires_grad]
        grads = torch.autograd.grad(module(inputs).square().sum(), learning)
        with torch.no_grad():
            for parameter, grad in zip(learning, grads, strict=True):
                parameter -= 0.01 * grad
    net.load_state_dict(model.export(state(module)), strict=True)
    assert torch.equal(module.eval()(inputs), logits(call(net.eval(), inputs)))
    sizes = [phase_cost(model, Phase(stage, 1)).parameters for stage in (1, 2, 3)]
    assert sizes == sorted(set(sizes))


def test_a_temporary_head_of_a_tied_language_model_is_nothing_but_a_norm() -> None:
    net, inputs = gpt2()
    model = split(net, stages=3, example=inputs)
    assert {name: tuple(value.shape) for name, value in model.init("G1", seed=0).items()} == {
        "G1.norm.weight": (16,),
        "G1.norm.bias": (16,),
    }
