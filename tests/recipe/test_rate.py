"""Learning rates: closed forms, warm-up, and how they follow a schedule that grows."""

from __future__ import annotations

import math

import pytest
import torch

from progfed.errors import UsageError
from progfed.recipe.rate import Constant, Cosine, Cycles, Moment, MultiStep, PerStage, Rate, Restart
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import turn_at
from progfed.schedule import Phase, Schedule, end_to_end, progressive


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
    assert min(rates(MultiStep(0.1, (0.1,)), schedule)[: -sum(p.rounds for p in schedule[-2:])]) == 0.1


def test_the_papers_cosine_runs_over_all_rounds() -> None:
    paper = rates(Cosine(0.1), progressive(20, stages=3, hold=False))
    assert paper == rates(Cosine(0.1), end_to_end(20, stages=3)) == rates(0.1, end_to_end(20, stages=3))


def test_a_schedule_that_only_holds_stays_at_the_first_rate() -> None:
    assert rates(Cosine(0.1), (Phase(1, 3, hold=True),)) == [0.1] * 3


@pytest.mark.parametrize("rate", [-0.1, math.nan, math.inf])
def test_a_rate_that_is_no_finite_number_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="a learning rate is a finite number"):
        Recipe(schedule=end_to_end(2, stages=1), cohort=1, rate=rate)
