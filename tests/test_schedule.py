from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progfed.errors import UsageError
from progfed.schedule import (
    Phase,
    end_to_end,
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
    assert [phase.rounds for phase in progressive(6, stages=3, lengths=(1, 2, 3))] == [1, 2, 3]
    for lengths in ((1, 2), (1, 2, 4), (0, 3, 3)):
        with pytest.raises(UsageError, match="stage lengths"):
            progressive(6, stages=3, lengths=lengths)


def test_warm_up_comes_after_each_growth_and_is_extra_to_the_budget() -> None:
    schedule = progressive(12, stages=3, warmup=2)
    assert [(p.stage, p.rounds, p.trains, p.warmup) for p in schedule] == [
        (1, 2, (), False),
        (2, 2, (2,), True),
        (2, 2, (), False),
        (3, 2, (3,), True),
        (3, 8, (), False),
    ]
    assert length(schedule) == 12
    assert with_warmup(schedule, 0) == progressive(12, stages=3)


def test_one_stage_is_end_to_end() -> None:
    assert progressive(10, stages=1, warmup=3) == end_to_end(10, stages=1)


@given(
    stages=st.integers(1, 6),
    extra=st.integers(0, 300),
    warmup=st.integers(0, 9),
    target=st.integers(6, 400),
    kind=st.sampled_from(["progressive", "layerwise", "partial", "mixed", "random"]),
)
def test_rescaling_keeps_every_stage_and_gives_the_asked_rounds(
    stages: int, extra: int, warmup: int, target: int, kind: str
) -> None:
    rounds = stages + extra
    makers = {"layerwise": layerwise, "partial": partial, "mixed": mixed, "random": random}
    if kind == "progressive":
        schedule = progressive(rounds, stages=stages, warmup=warmup)
    else:
        schedule = makers[kind](rounds, stages=stages)
    scaled = rescale(schedule, target)
    assert length(scaled) == target
    assert {p.stage for p in scaled} == {p.stage for p in schedule}
    assert all(p.rounds >= 1 for p in scaled)
    assert any(p.warmup for p in scaled) == any(p.warmup for p in schedule)


@given(stages=st.integers(1, 5), factor=st.integers(1, 40), target=st.integers(10, 200))
def test_rescaling_gives_what_the_rule_gives(stages: int, factor: int, target: int) -> None:
    assert rescale(progressive(2 * stages * factor, stages=stages), target) == progressive(target, stages=stages)


@pytest.mark.parametrize("rounds", range(3, 12))
def test_a_long_first_stage_leaves_a_round_to_each_of_the_others_however_few_there_are(rounds: int) -> None:
    scaled = rescale(progressive(100, stages=3, lengths=(98, 1, 1)), rounds)
    assert [phase.stage for phase in scaled] == [1, 2, 3]
    assert sum(phase.rounds for phase in scaled) == rounds
    with pytest.raises(UsageError, match="2 rounds are too few for 3 stages"):
        rescale(progressive(100, stages=3, lengths=(98, 1, 1)), 2)


def test_strategies_differ_only_in_stage_trained_blocks_and_heads() -> None:
    assert layerwise(6, stages=3) == (Phase(3, 1, (1,)), Phase(3, 1, (2,)), Phase(3, 4, (3,)))
    assert partial(6, stages=3) == (Phase(3, 1, (1,)), Phase(3, 1, (1, 2)), Phase(3, 4, (1, 2, 3)))
    assert [phase.heads for phase in mixed(6, stages=3)] == [(1, 3), (2, 3), ()]
    drawn = random(200, stages=4, seed=1)
    assert {phase.stage for phase in drawn} == {1, 2, 3, 4}
    assert drawn == random(200, stages=4, seed=1) != random(200, stages=4, seed=2)
