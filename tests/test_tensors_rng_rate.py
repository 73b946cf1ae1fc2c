from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed import rng
from progfed.rate import Constant, Cosine, Moment, MultiStep, Restart
from progfed.tensors import add, mean, of_parts, sub, tree_len, tree_map


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_the_mean_of_a_name_is_over_those_who_have_it() -> None:
    result = mean([(1.0, {"a": t(2.0), "b": t(1.0)}), (3.0, {"a": t(6.0)})])
    assert result["a"].item() == 5.0
    assert result["b"].item() == 1.0


def test_the_mean_does_not_change_its_inputs() -> None:
    first = {"a": t(2.0)}
    mean([(0.5, first), (1.0, {"a": t(1.0)})])
    assert first["a"].item() == 2.0


def test_add_leaves_names_that_did_not_move() -> None:
    before = {"a": t(1.0), "b": t(2.0)}
    after = add(before, {"a": t(0.5)})
    assert after["a"].item() == 1.5
    assert after["b"] is before["b"]


def test_sub_and_parts_go_by_name() -> None:
    tensors = {"E1.w": t(3.0), "E10.w": t(4.0), "G1.w": t(5.0)}
    assert set(of_parts(tensors, ["E1", "G1"])) == {"E1.w", "G1.w"}
    assert sub({"E1.w": t(3.0)}, tensors)["E1.w"].item() == 0.0


def test_trees_of_inputs_are_mapped_and_measured() -> None:
    tree = {"ids": torch.zeros(4, 2), "more": (torch.zeros(4), [torch.zeros(4, 1)])}
    assert tree_len(tree) == 4
    assert tree_len(tree_map(lambda leaf: leaf[:3], tree)) == 3
    with pytest.raises(ValueError, match="common first dimension"):
        tree_len((torch.zeros(2), torch.zeros(3)))
    with pytest.raises(TypeError, match="tensors"):
        tree_len("text")


@given(st.integers(0, 2**40), st.integers(1, 400), st.data())
def test_samples_are_without_replacement_in_range_and_repeat(seed: int, population: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, population))
    drawn = rng.sample(population, size, seed, "sample", 1)
    assert len(set(drawn)) == size
    assert min(drawn) >= 0
    assert max(drawn) < population
    assert list(drawn) == sorted(drawn)
    assert drawn == rng.sample(population, size, seed, "sample", 1)


def test_every_client_is_sampled_equally_often() -> None:
    rounds, population, size = 4000, 10, 3
    counts = torch.zeros(population)
    for number in range(rounds):
        for client in rng.sample(population, size, 0, "sample", number):
            counts[client] += 1
    expected = rounds * size / population
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


def test_a_key_is_not_confused_with_another_that_reads_alike() -> None:
    assert len({rng.number(1, "a", 2), rng.number(1, "a", "2"), rng.number(12, "a"), rng.number(1, "2a")}) == 4


def test_the_default_generator_is_put_back() -> None:
    before = torch.get_rng_state()
    with rng.default(0, "init", 1):
        first = torch.rand(3)
    with rng.default(0, "init", 1):
        assert torch.equal(torch.rand(3), first)
    with pytest.raises(RuntimeError), rng.default(0, "init", 1):
        torch.ones(2) + torch.ones(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_rates_follow_their_closed_forms() -> None:
    middle = Moment(t=50, of=100, stage_t=5, stage_of=10)
    assert Constant(0.1)(middle) == 0.1
    assert Cosine(0.2, floor=0.1)(middle) == pytest.approx(0.15)
    assert Cosine(0.2)(Moment(0, 100, 0, 1)) == 0.2
    assert MultiStep(1.0, (0.3, 0.5, 0.8), 0.1)(middle) == pytest.approx(0.01)
    late = Moment(t=90, of=100, stage_t=0, stage_of=50)
    assert Restart(Cosine(0.2))(late) == 0.2
    assert Restart(MultiStep(1.0, (0.5,), 0.1))(Moment(10, 100, 5, 10)) == 0.1


def test_warm_up_rounds_use_the_base_rate() -> None:
    warm = Moment(t=80, of=100, stage_t=1, stage_of=5, warmup=True)
    assert Cosine(0.2)(warm) == MultiStep(0.2)(warm) == Restart(Cosine(0.2))(warm) == 0.2
