"""A small decoder-only transformer over characters, which grows by layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from progfed import rng
from progfed.blocks import Make, Progressive
from progfed.errors import UsageError


def gpt(
    vocabulary: int = 65,
    *,
    context: int = 64,
    width: int = 64,
    layers: int = 6,
    attention_heads: int = 4,
    stages: int = 3,
) -> Progressive:
    """A decoder-only transformer: token numbers `[batch, time]` to next-token scores `[batch, time, vocabulary]`.

    E_1 has the embeddings and the first layers. Layers are divided evenly; where that leaves a rest, the first blocks
    have one more. Every head, temporary or not, is a LayerNorm and one fully connected layer.

    Args:
        vocabulary: The number of different tokens.
        context: The longest sequence that the model takes.
        width: The size of the features of a token.
        layers: The number of layers.
        attention_heads: Attention heads in each layer.
        stages: The number of blocks.
    """
    if not 1 <= stages <= layers:
        raise UsageError(f"{layers} layers make 1 to {layers} stages, not {stages}")
    if width % attention_heads:
        raise UsageError(f"a width of {width} does not divide among {attention_heads} attention heads")
    shares = [layers // stages + (block < layers % stages) for block in range(stages)]
    first = lambda: Embedding(vocabulary, context, width)  # noqa: E731
    return Progressive(
        blocks=tuple(
            _block(share, width, attention_heads, *([first] if not block else [])) for block, share in enumerate(shares)
        ),
        heads=(lambda: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary)),) * stages,
        example=torch.zeros(1, context, dtype=torch.int64),
        name="gpt",
    )


def _block(layers: int, width: int, heads: int, *before: Make) -> Make:
    return lambda: nn.Sequential(*(make() for make in before), *(Layer(width, heads) for _ in range(layers)))


class Embedding(nn.Module):
    """A vector for each token plus one for its position."""

    def __init__(self, vocabulary: int, context: int, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(context, width)
        # the token is what the first predictions hang on; its place only shades it
        nn.init.normal_(self.place.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        context = self.place.num_embeddings
        if tokens.shape[1] > context:
            raise UsageError(
                f"{tokens.shape[1]} tokens are more than the context of {context}: give the last {context}"
            )
        embedded: Tensor = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return embedded


class Layer(nn.Module):
    """Causal attention, then two fully connected layers, each on normalised features and added to them.

    What is added starts at zero, so that a layer that has just grown leaves the features as they were.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        for parameter in (*self.attention.outward.parameters(), *self.mlp[-1].parameters()):
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        features = features + self.attention(self.norm1(features))
        added: Tensor = features + self.mlp(self.norm2(features))
        return added


class Attention(nn.Module):
    """Causal attention: every position looks at itself and at those before it.

    Written out in matrix products, which torch's FLOP counter sees on every device; of the fused kernel it does not
    see the one for CPUs.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, features: Tensor) -> Tensor:
        batch, time, width = features.shape
        split = self.inward(features).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
        later = torch.ones(time, time, dtype=torch.bool, device=features.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        out: Tensor = self.outward(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


def continued(module: nn.Module, start: Tensor, length: int, *, context: int = 64, seed: int = 0) -> Tensor:
    """A text continued by a model.

    Args:
        module: A model that `gpt(…).at(stage)` returns.
        start: The tokens to begin with, `[time]`.
        length: How many tokens to add; each is drawn from the model's own probabilities.
        context: How many of the last tokens the model sees.
        seed: What they are drawn from.

    Returns:
        The tokens, with those of `start`.
    """
    module.eval()
    tokens, draw = start.view(1, -1), rng.generator(seed, "continued")
    with torch.inference_mode():
        for _ in range(length):
            chances = module(tokens[:, -context:])[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=draw)], 1)
    return tokens[0]
