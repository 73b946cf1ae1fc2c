from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progfed.errors import UsageError
from progfed.recipe.recipe import Recipe
from progfed.schedule import (
    Phase,
    Schedule,
    as_published,
    end_to_end,
    follow,
    freezing,
    layerwise,
    length,
    mixed,
    partial,
    progressive,
    random,
    rescale,
    stage_lengths,
    with_warmup,
)


@given(stages=st.integers(1, 12), extra=st.integers(0, 5000))
def test_stage_lengths_sum_to_the_budget_and_leave_no_stage_out(stages: int, extra: int) -> None:
    lengths = stage_lengths(stages + extra, stages)
    assert sum(lengths) == stages + extra
    assert len(lengths) == stages
    assert min(lengths) >= 1


@given(stages=st.integers(1, 8), factor=st.integers(1, 500))
def test_stage_lengths_are_the_papers_where_they_divide(stages: int, factor: int) -> None:
    rounds = 2 * stages * factor
    assert stage_lengths(rounds, stages) == (
        *[rounds // (2 * stages)] * (stages - 1),
        rounds * (stages + 1) // (2 * stages),
    )


@pytest.mark.parametrize(
    ("rounds", "stages", "expected"),
    [(1500, 3, (250, 250, 1000)), (2000, 4, (250, 250, 250, 1250)), (3000, 4, (375, 375, 375, 1875))],
)
def test_the_papers_rows_have_the_papers_stage_lengths(rounds: int, stages: int, expected: tuple[int, ...]) -> None:
    assert stage_lengths(rounds, stages) == expected


def test_fewer_rounds_than_stages_are_refused() -> None:
    with pytest.raises(UsageError, match="3 rounds are too few for 4 stages"):
        progressive(3, stages=4)


def test_explicit_lengths_are_used_and_checked() -> None:
    assert [phase.rounds for phase in progressive(6, stages=3, lengths=(1, 2, 3), overlap=0)] == [1, 2, 3]
    for lengths in ((1, 2), (1, 2, 4), (0, 3, 3)):
        with pytest.raises(UsageError, match="stage lengths"):
            progressive(6, stages=3, lengths=lengths)


def test_warm_up_comes_after_each_growth_and_is_extra_to_the_budget() -> None:
    schedule = as_published(12, stages=3, warmup=2)
    assert [(p.stage, p.rounds, p.trains, p.warmup) for p in schedule] == [
        (1, 2, (), False),
        (2, 2, (2,), True),
        (2, 2, (), False),
        (3, 2, (3,), True),
        (3, 8, (), False),
    ]
    assert length(schedule) == 12
    assert with_warmup(schedule, 0) == as_published(12, stages=3)


def test_one_stage_is_end_to_end() -> None:
    assert progressive(10, stages=1, warmup=3) == end_to_end(10, stages=1)


@given(
    stages=st.integers(1, 6),
    extra=st.integers(0, 300),
    warmup=st.integers(0, 9),
    target=st.integers(6, 400),
    kind=st.sampled_from(["progressive", "freezing", "layerwise", "partial", "mixed", "random"]),
)
def test_rescaling_keeps_every_stage_and_gives_the_asked_rounds(
    stages: int, extra: int, warmup: int, target: int, kind: str
) -> None:
    rounds = stages + extra
    makers = {"freezing": freezing, "layerwise": layerwise, "partial": partial, "mixed": mixed, "random": random}
    if kind == "progressive":
        schedule = as_published(rounds, stages=stages, warmup=warmup)
    else:
        schedule = makers[kind](rounds, stages=stages)
    scaled = rescale(schedule, target)
    assert length(scaled) == target
    assert all(p.rounds >= 1 for p in scaled)
    if kind == "random":
        assert scaled == random(target, stages=stages)
    else:
        assert [replace(p, rounds=1) for p in scaled] == [replace(p, rounds=1) for p in schedule]


@pytest.mark.parametrize("make", [progressive, freezing, layerwise, partial, mixed, random])
def test_every_strategy_is_what_it_is_at_every_length_or_is_refused(make: Callable[..., Schedule]) -> None:
    for rounds in range(4, 13):
        scaled = rescale(make(200, stages=4), rounds)
        kept = make(rounds, stages=4)
        assert [replace(p, rounds=1) for p in scaled] == [replace(p, rounds=1) for p in kept]
        assert scaled[-1].stage == 4
    for rounds in range(1, 4):
        with pytest.raises(UsageError, match=f"{rounds} rounds are too few for 4 (stages|phases)"):
            rescale(make(200, stages=4), rounds)


@given(stages=st.integers(1, 5), factor=st.integers(3, 40), target=st.integers(10, 200))
def test_rescaling_gives_what_the_rule_gives(stages: int, factor: int, target: int) -> None:
    assert rescale(progressive(2 * stages * factor, stages=stages), target) == progressive(target, stages=stages)


@pytest.mark.parametrize("rounds", range(3, 12))
def test_a_long_first_stage_leaves_a_round_to_each_of_the_others_however_few_there_are(rounds: int) -> None:
    scaled = rescale(progressive(100, stages=3, lengths=(98, 1, 1)), rounds)
    assert [phase.stage for phase in scaled] == [1, 2, 3]
    assert sum(phase.rounds for phase in scaled) == rounds
    with pytest.raises(UsageError, match="2 rounds are too few for 3 stages"):
        rescale(progressive(100, stages=3, lengths=(98, 1, 1)), 2)


def test_random_follows_the_seed_of_its_recipe_unless_it_has_one_of_its_own() -> None:
    recipe = Recipe(schedule=random(60, stages=4), cohort=1)
    assert recipe.schedule == random(60, stages=4, seed=0)
    assert replace(recipe, seed=7).schedule == random(60, stages=4, seed=7) != recipe.schedule
    assert replace(replace(recipe, seed=7), seed=0) == recipe
    fixed = Recipe(schedule=random(60, stages=4, seed=5), cohort=1, seed=7)
    assert fixed.schedule == random(60, stages=4, seed=5)
    moved = pickle.loads(pickle.dumps(recipe))
    assert replace(moved, seed=7).schedule == random(60, stages=4, seed=7)


def test_only_blocks_that_nobody_has_trained_are_warmed_up() -> None:
    schedule = with_warmup((Phase(2, 1), Phase(1, 1), Phase(2, 1), Phase(4, 1), Phase(3, 1), Phase(4, 3)), 2)
    assert [p for p in schedule if p.warmup] == [Phase(4, 2, trains=(3, 4), warmup=True)]
    assert schedule.index(Phase(4, 2, trains=(3, 4), warmup=True)) == 3
    for seed in range(20):
        trained: set[int] = set()
        for phase in with_warmup(random(40, stages=4, seed=seed), 2):
            assert not (phase.warmup and trained & set(phase.trains))
            trained |= set(phase.trained_blocks)


def test_a_drawn_schedule_keeps_its_warm_up_when_it_is_drawn_again() -> None:
    warmed = with_warmup(random(40, stages=4), 4)
    assert rescale(warmed, 20) == with_warmup(random(20, stages=4), 2)
    assert follow(warmed, 3) == with_warmup(random(40, stages=4, seed=3), 4)
    assert with_warmup(warmed, 0) == random(40, stages=4)


def test_strategies_differ_only_in_stage_trained_blocks_and_heads() -> None:
    assert layerwise(6, stages=3) == (Phase(3, 1, (1,)), Phase(3, 1, (2,)), Phase(3, 4, (3,)))
    assert partial(6, stages=3) == (Phase(3, 1, (1,)), Phase(3, 1, (1, 2)), Phase(3, 4, (1, 2, 3)))
    assert [phase.heads for phase in mixed(6, stages=3)] == [(1, 3), (2, 3), ()]
    drawn = random(200, stages=4, seed=1)
    assert {phase.stage for phase in drawn} == {1, 2, 3, 4}
    assert drawn == random(200, stages=4, seed=1) != random(200, stages=4, seed=2)


def test_freezing_trains_the_newest_block_and_as_many_before_it_as_asked() -> None:
    assert freezing(7, stages=3, hold=False) == (Phase(1, 2, (1,)), Phase(2, 2, (2,)), Phase(3, 3, (3,)))
    assert [phase.trains for phase in freezing(8, stages=4, again=2)] == [(1,), (1, 2), (1, 2, 3), (2, 3, 4)]
    assert [phase.rounds for phase in freezing(8, stages=3, lengths=(1, 2, 5))] == [1, 2, 5]
    assert [phase.hold for phase in freezing(8, stages=3)] == [True, True, False]
    assert [phase.trained_blocks for phase in freezing(9, stages=3, again=9)] == [(1,), (1, 2), (1, 2, 3)]
    with pytest.raises(UsageError, match="2 rounds are too few for 3 stages"):
        freezing(2, stages=3)
    with pytest.raises(UsageError, match="again is how many earlier blocks learn once more"):
        freezing(9, stages=3, again=-1)


def test_the_old_head_learns_beside_the_new_one_at_first() -> None:
    schedule = progressive(12, stages=3, lengths=(3, 2, 7))
    assert schedule == (
        Phase(1, 3, hold=True),
        Phase(2, 2, heads=(1, 2), hold=True),
        Phase(3, 2, heads=(2, 3)),
        Phase(3, 5),
    )
    assert progressive(12, stages=3, overlap=0) == (Phase(1, 2, hold=True), Phase(2, 2, hold=True), Phase(3, 8))
    assert progressive(5, stages=1) == end_to_end(5, stages=1)


def test_overlap_takes_no_rounds_from_a_schedule_and_warms_each_block_up_once() -> None:
    plain, both = (progressive(30, stages=3, warmup=1, overlap=overlap) for overlap in (0, 2))
    assert length(both) == length(plain) == 30
    assert [phase for phase in both if phase.warmup] == [phase for phase in plain if phase.warmup]
    assert length(rescale(both, 60)) == 60


def test_a_negative_overlap_is_refused() -> None:
    with pytest.raises(UsageError, match="overlap is a number of rounds"):
        progressive(12, stages=3, overlap=-1)


def test_the_papers_schedule_has_one_head_at_a_time_and_one_rate_schedule() -> None:
    assert as_published(12, stages=3) == (Phase(1, 2), Phase(2, 2), Phase(3, 8))
    assert as_published(12, stages=2, lengths=(5, 7), warmup=1) == (
        Phase(1, 5),
        Phase(2, 1, trains=(2,), warmup=True),
        Phase(2, 7),
    )


def test_an_overlap_keeps_its_rounds_at_any_length_and_takes_none_from_a_stage() -> None:
    schedule = progressive(30, stages=3)
    assert rescale(schedule, 60) == progressive(60, stages=3)
    assert rescale(schedule, 4) == progressive(4, stages=3)
    assert rescale(mixed(30, stages=3), 3) == mixed(3, stages=3)
    with pytest.raises(UsageError, match="2 rounds are too few for 3 stages"):
        rescale(schedule, 2)
