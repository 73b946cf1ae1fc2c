"""Models of the transformers package, as it makes them from a configuration."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn

from progfed import Phase, rng, split
from progfed.blocks import state
from progfed.costs.phase import phase_cost
from progfed.split.heads import PooledTokens
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


def padded(tokens: int) -> dict[str, torch.Tensor]:
    """Sentences of 5 and 8 tokens, followed by padding up to so many."""
    mask = (torch.arange(tokens) < torch.tensor([[5], [8]])).long()
    return {"input_ids": (torch.arange(2 * 16).view(2, 16)[:, :tokens] % 29 + 1) * mask, "attention_mask": mask}


def test_temporary_heads_of_sentences_do_not_see_padding() -> None:
    with rng.default(0, "zoo"):
        net, _ = bert()
    model = split(net, stages=3, example=padded(12))
    for stage in (1, 2, 3):
        module = model.at(stage).eval()
        torch.testing.assert_close(module(padded(9)), module(padded(16)))


def test_without_a_mask_the_mean_is_over_all_tokens_as_ever() -> None:
    with rng.default(0, "zoo"):
        net, inputs = bert()
    plain = split(net, stages=3, example={"input_ids": IDS}, heads="pooled")
    masked = split(net, stages=3, example=inputs)
    assert type(plain.make("G1")) is PooledTokens
    assert plain.init("G1", seed=0).keys() == masked.init("G1", seed=0).keys()
    assert plain.name != masked.name  # they are trained differently, so they are different experiments
    full = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    torch.testing.assert_close(masked.at(1).eval()(full), plain.at(1).eval()({"input_ids": IDS}))


class Last(nn.Module):
    """A head of a user's own that wants the mask: the last token that is no padding decides."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 4)

    def forward(self, features: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        last = attention_mask.sum(1) - 1
        scores: torch.Tensor = self.fc(features[torch.arange(len(features)), last])
        return scores


def test_a_head_of_ones_own_that_takes_the_mask_is_given_it() -> None:
    with rng.default(0, "zoo"):
        net, _ = bert()
    model = split(net, stages=2, example=padded(12), heads=[Last])
    module = model.at(1).eval()
    torch.testing.assert_close(module(padded(9)), module(padded(16)))
