from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed import rng
from progfed.errors import UsageError
from progfed.recipe.rate import Constant, Cosine, Cycles, Moment, MultiStep, PerStage, Rate, Restart
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import turn_at
from progfed.schedule import Phase, Schedule, end_to_end, progressive
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
    weights = torch.optim.SGD([torch.zeros(1)], lr=0.2)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(weights, T_0=10)
    for t in range(40):
        assert Cycles(Cosine(0.2), 4)(Moment(t, 40, 0, 1)) == pytest.approx(theirs.get_last_lr()[0])
        theirs.step()
    assert [Cycles(Cosine(0.2), 5)(Moment(t, 3, 0, 1)) for t in range(3)] == [0.2, 0.2, 0.2]


def test_warm_up_rounds_use_the_base_rate() -> None:
    warm = Moment(t=80, of=100, stage_t=1, stage_of=5, warmup=True)
    assert Cosine(0.2)(warm) == MultiStep(0.2)(warm) == Restart(Cosine(0.2))(warm) == 0.2


def rates(rate: Rate | float, schedule: Schedule) -> list[float]:
    recipe = Recipe(schedule=schedule, cohort=1, rate=rate)
    turns = [turn_at(schedule, number) for number in range(1, 1 + sum(phase.rounds for phase in schedule))]
    return [recipe.rate(turn.moment) for turn in turns if turn]


@pytest.mark.parametrize("warmup", [0, 2])
def test_growing_holds_the_first_rate_until_the_full_model_is_trained(warmup: int) -> None:
    by_hand = PerStage((Constant(0.1), Constant(0.1), Restart(Cosine(0.1))))
    schedule = progressive(20, stages=3, warmup=warmup)
    assert rates(Cosine(0.1), schedule) == rates(0.1, schedule) == rates(by_hand, schedule)
    assert min(rates(MultiStep(0.1, (0.1,)), schedule)[: -schedule[-1].rounds]) == 0.1


def test_the_papers_cosine_runs_over_all_rounds() -> None:
    paper = rates(Cosine(0.1), progressive(20, stages=3, hold=False))
    assert paper == rates(Cosine(0.1), end_to_end(20, stages=3)) == rates(0.1, end_to_end(20, stages=3))


def test_a_schedule_that_only_holds_stays_at_the_first_rate() -> None:
    assert rates(Cosine(0.1), (Phase(1, 3, hold=True),)) == [0.1] * 3


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_a_rate_that_is_no_finite_number_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="a learning rate is a finite number"):
        Recipe(schedule=end_to_end(2, stages=1), cohort=1, rate=rate)
