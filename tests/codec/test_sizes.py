"""The sizes that the paper's compression table promises, for its ResNet-18 of 11,220,132 parameters."""

from __future__ import annotations

import pytest
import torch

from progfed import rng
from progfed.codec import Schema, codec, numel, schema_of


def resnet18() -> Schema:
    schema: Schema = {"stem": (64, 3, 3, 3), "stem.scale": (64,), "stem.shift": (64,)}
    before = 64
    for width in (64, 128, 256, 512):
        for block in (1, 2):
            inputs = before if block == 1 else width
            convolutions = {"first": (width, inputs, 3, 3), "second": (width, width, 3, 3)}
            if inputs != width:
                convolutions["shortcut"] = (width, inputs, 1, 1)
            for name, shape in convolutions.items():
                place = f"{width}.{block}.{name}"
                schema |= {place: shape, f"{place}.scale": (width,), f"{place}.shift": (width,)}
        before = width
    return schema | {"head.weight": (100, 512), "head.bias": (100,)}


PROMISED = {
    "float": 100.0,
    "fp16": 50.0,
    "LQ-8": 25.05,
    "LQ-4": 12.55,
    "LQ-2": 6.30,
    "LQ-1": 3.18,
    "ROT+LQ-4": 12.55,
    "SP-25": 25.05,
    "SP-10": 10.05,
    "LQ-8+SP-25": 6.30,
    "LQ-8+SP-10": 2.55,
    "SP-25+LQ-8": 6.30,
    "TOP-10": 11.7,
    "EDEN-1": 3.48,
    "DQ-1.5": 25.1,
    "DQ-0.7bit": 2.19,
}


def test_the_shapes_are_those_of_the_paper() -> None:
    assert numel(resnet18()) == 11_220_132
    assert len(resnet18()) == 62


@pytest.mark.parametrize(("name", "percent"), PROMISED.items())
def test_a_message_is_no_longer_than_promised(name: str, percent: float) -> None:
    assert codec(name).size(resnet18()) <= percent / 100 * 4 * 11_220_132


@pytest.mark.parametrize("name", ["LQ-8+SP-25", "LQ-2", "TOP-10"])
def test_the_real_bytes_of_the_whole_model_are_as_many_as_predicted(name: str) -> None:
    draw = rng.generator(0)
    tensors = {name: torch.randn(shape, generator=draw) for name, shape in resnet18().items()}
    assert len(codec(name).encode(tensors, 0)) == codec(name).size(schema_of(tensors))
