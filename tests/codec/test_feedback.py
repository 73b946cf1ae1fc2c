from __future__ import annotations

import pytest
import torch

from progfed import rng
from progfed.codec import codec, feedback, schema_of
from progfed.errors import UsageError
from progfed.tensors import Tensors, add


def decoded(name: str, data: bytes, tensors: Tensors) -> Tensors:
    return codec(name).decode(memoryview(data), schema_of(tensors))


@pytest.mark.parametrize(
    "name", ["LQ-2", "LQ-4", "TOP-10", "RAND-25", "ROT+LQ-4", "TOP-10+LQ-8", "bf16", "DQ-1.5", "EDEN-1"]
)
def test_what_was_sent_and_what_is_remembered_add_up_to_what_was_wanted(name: str) -> None:
    draw = rng.generator(0)
    memory: Tensors = {}
    wanted = sent = torch.zeros(500)
    for key in range(30):
        update = {"w": torch.randn(500, generator=draw)}
        data, memory = feedback(codec(name), update, memory, key)
        wanted, sent = wanted + update["w"], sent + decoded(name, data, update)["w"]
    torch.testing.assert_close(sent + memory["w"], wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("name", "bound"), [("LQ-2", 2.0), ("LQ-4", 2 / 13), ("LQ-8", 2 / 253)])
def test_the_memory_of_a_quantizer_stays_within_its_fixed_point(name: str, bound: float) -> None:
    memory: Tensors = {}
    for key in range(60):
        update = torch.rand(300, generator=rng.generator(key)) * 2 - 1
        _, memory = feedback(codec(name), {"w": update}, memory, key)
        # e' <= step <= 2 (|x| + e) / (2**bits - 1), of which `bound` is the fixed point for |x| <= 1
        assert float(memory["w"].abs().max()) <= bound * (1 + 1e-5)


def test_names_that_are_new_start_at_zero_and_names_that_are_gone_are_dropped() -> None:
    memory = {"E1.w": torch.full((3,), 0.25), "G1.w": torch.ones(2)}
    tensors = {"E1.w": torch.tensor([1.0, 2.0, 3.0]), "E2.w": torch.tensor([7.0])}
    data, after = feedback(codec("float"), tensors, memory, 0)
    sent = decoded("float", data, tensors)
    assert sent["E1.w"].tolist() == [1.25, 2.25, 3.25]
    assert sent["E2.w"].tolist() == [7.0]
    assert {name: float(value.abs().max()) for name, value in after.items()} == {"E1.w": 0.0, "E2.w": 0.0}
    assert memory["E1.w"].tolist() == [0.25] * 3
    assert tensors["E1.w"].tolist() == [1.0, 2.0, 3.0]


def test_memory_of_another_shape_is_refused() -> None:
    with pytest.raises(UsageError, match=r"E1\.w has shape \(1,\) instead of \(3,\)"):
        feedback(codec("LQ-8"), {"E1.w": torch.ones(3)}, {"E1.w": torch.ones(1)}, 0)


@pytest.mark.parametrize(("name", "close", "far"), [("TOP-10", 0.25, 0.5), ("LQ-2", 0.08, 0.11)])
def test_gradient_descent_comes_closer_with_feedback_than_it_can_without(name: str, close: float, far: float) -> None:
    """Four clients whose gradients at the optimum are far from zero but add up to it: only their sum matters."""
    targets = [torch.randn(100, generator=rng.generator(client)) * 3 for client in range(4)]
    optimum = torch.stack(targets).mean(0)

    def distance(*, remember: bool) -> float:
        point = {"w": torch.zeros(100)}
        memories: list[Tensors] = [{} for _ in targets]
        for turn in range(150):
            for client, target in enumerate(targets):
                step = {"w": (target - point["w"]) * 0.02}
                data, lost = feedback(codec(name), step, memories[client], rng.number(0, turn, client))
                memories[client] = lost if remember else {}
                point = add(point, decoded(name, data, step))
        return float((point["w"] - optimum).norm() / optimum.norm())

    assert distance(remember=True) < close
    assert distance(remember=False) > far


@pytest.mark.parametrize(("name", "bound"), [("DQ-1.5", 0.26), ("DQ-3", 3.6), ("EDEN-1", 1.6)])
def test_the_memory_of_noise_in_proportion_to_the_message_stays_bounded(name: str, bound: float) -> None:
    """Where the squared memory is a share c < 1 of the squared message, it ends near c / (1 - c) of the update."""
    memory: Tensors = {}
    for key in range(60):
        update = torch.randn(4096, generator=rng.generator(key))
        _, memory = feedback(codec(name), {"w": update}, memory, key)
    assert float(memory["w"].pow(2).mean()) < bound
