"""Two codecs in one message: each decodes what it encoded, lengths are known, and damage has a reason."""

from __future__ import annotations

import pytest
import torch

from progfed import rng
from progfed.codec import Apart, Float, codec, schema_of
from progfed.errors import MessageError

CODECS = ["float", "LQ-8", "SP-25", "LQ-4+SP-50", "ROT+LQ-4", "DQ-1.5", "EDEN-1", "fp16"]


def tensors() -> dict[str, torch.Tensor]:
    draw = rng.generator(0, "apart")
    shapes = {"E1.weight": (7, 5), "G1.bias": (3,), "c/E1.weight": (7, 5), "scores/accuracy": ()}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}


@pytest.mark.parametrize("beside", ["float", "LQ-8", "DQ-1.5"])
@pytest.mark.parametrize("main", CODECS)
def test_each_part_is_what_its_own_codec_makes_of_it(main: str, beside: str) -> None:
    both, given = Apart(codec(main), codec(beside)), tensors()
    schema = schema_of(given)
    data = both.encode(given, 7)
    assert len(data) == both.size(schema) if both.exact else len(data) <= both.size(schema)
    found = both.decode(memoryview(data), schema)
    assert found.keys() == schema.keys()
    for one, names in ((both.main, ["E1.weight", "G1.bias"]), (both.beside, ["c/E1.weight", "scores/accuracy"])):
        own = {name: given[name] for name in names}
        alone = one.decode(memoryview(one.encode(own, 7)), schema_of(own))
        assert all(torch.equal(found[name], alone[name]) for name in names)


@pytest.mark.parametrize("main", ["float", "DQ-1.5"])
def test_a_message_without_anything_beside_it_is_that_of_the_model(main: str) -> None:
    given = {name: value for name, value in tensors().items() if "/" not in name}
    both = Apart(codec(main), Float())
    assert both.encode(given, 3).endswith(codec(main).encode(given, 3))


@pytest.mark.parametrize("main", CODECS)
def test_damage_is_refused_with_a_reason_and_never_another_error(main: str) -> None:
    both, given = Apart(codec(main), Float()), tensors()
    schema, data = schema_of(given), Apart(codec(main), Float()).encode(tensors(), 1)
    for length in range(len(data)):
        with pytest.raises(MessageError):
            both.decode(memoryview(data[:length]), schema)
    if not both.exact:
        for told in (0, 2**63, len(data)):
            with pytest.raises(MessageError):
                both.decode(memoryview(told.to_bytes(8, "little") + data[8:]), schema)
