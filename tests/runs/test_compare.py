"""Growing compared with end-to-end training, over as many rounds and for as many bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from progfed.errors import UsageError
from progfed.experiments import cifar10
from progfed.recipe.growth import Plateau
from progfed.recipe.turns import turn_at
from progfed.runs.compare import compared, equal_bytes, measured_rounds, planned_rounds, whole_of
from progfed.runs.experiment import Experiment
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.schedule import end_to_end, layerwise, length, mixed, progressive, random
from tiny import tiny_data, tiny_experiment, tiny_recipe


def sent(cost: dict[str, Any]) -> int:
    return int(cost["down_bytes"] + cost["up_bytes"])


STRATEGIES: dict[str, Callable[..., Any]] = {
    "progressive": progressive,
    "layerwise": layerwise,
    "mixed": mixed,
    "random": random,
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("up", ["float", "LQ-8+SP-25"])
def test_end_to_end_for_the_bytes_of_growing_sends_no_less_and_not_a_round_more(strategy: str, up: str) -> None:
    recipe = tiny_recipe(schedule=STRATEGIES[strategy](31, stages=3), up=up)
    whole, growing, equal = (plan(one)["total"] for one in compared(tiny_experiment(recipe=recipe)))
    assert sent(growing) <= sent(equal) < sent(growing) + sent(whole) // 31
    assert whole["rounds"] == growing["rounds"] == 31


def test_what_is_really_sent_is_at_least_what_the_growing_run_sent(tmp_path: Path) -> None:
    _, growing, equal = (run(one, tmp_path / one.run) for one in compared(tiny_experiment()))
    assert sent(equal["cost"]) >= sent(growing["cost"])
    assert equal["baseline"] == "tiny-end-to-end"


def test_the_growing_run_is_the_experiment_and_the_others_differ_in_their_schedule_alone() -> None:
    experiment = tiny_experiment()
    whole, growing, equal = compared(experiment)
    assert growing is experiment
    for other, name in ((whole, "tiny-end-to-end"), (equal, "tiny-equal-bytes")):
        schedule = end_to_end(length(other.recipe.schedule), stages=3)
        assert other.recipe == replace(experiment.recipe, schedule=schedule)
        assert (other.run, other.model, other.data) == (name, experiment.model, experiment.data)
    assert length(whole.recipe.schedule) == 9  # warm-up is extra to T


def test_the_rate_of_the_shorter_run_ends_where_it_ends() -> None:
    *_, equal = compared(tiny_experiment())
    rounds = length(equal.recipe.schedule)
    turn = turn_at(equal.recipe.schedule, rounds)
    assert turn is not None
    assert (turn.moment.t, turn.moment.of) == (rounds - 1, rounds)


def test_a_baseline_of_its_own_is_what_a_run_is_compared_with() -> None:
    runs = {one.run: one for one in cifar10.RUNS}
    whole, growing, equal = compared(runs["progressive"], baseline=runs["end-to-end"])
    assert (whole, growing) == (runs["end-to-end"], runs["progressive"])
    assert equal.recipe == replace(runs["end-to-end"].recipe, schedule=end_to_end(23, stages=4))  # 70.5 % of 32 rounds
    assert (equal.run, equal.baseline) == ("progressive-equal-bytes", "end-to-end")


UNPLANNED: dict[str, Callable[[], Experiment]] = {
    "a policy decides when to grow": lambda: tiny_experiment(
        recipe=tiny_recipe(schedule=progressive(20, stages=3), growth=Plateau(window=1, tolerance=0.5, least=1))
    ),
    "messages are as long as what is in them": lambda: tiny_experiment(recipe=tiny_recipe(up="DQ-1")),
    "patience ends it early": lambda: tiny_experiment(patience=2),
    "weak clients": lambda: tiny_experiment(data=replace(tiny_data(), deepest=(1, 2, 3, 3, 3, 3))),
}


@pytest.mark.parametrize("why", UNPLANNED)
def test_bytes_that_no_plan_knows_are_measured(why: str, tmp_path: Path) -> None:
    growing = UNPLANNED[why]()
    whole = whole_of(growing)
    assert planned_rounds(growing, whole) is None
    with pytest.raises(UsageError, match="only known when it is finished"):
        compared(growing)
    summary = run(growing, tmp_path / "growing")
    run(whole, tmp_path / "whole")
    equal = equal_bytes(growing, whole, measured_rounds([tmp_path / "growing"], [tmp_path / "whole"]))
    assert equal.recipe.growth is None
    equal = replace(equal, patience=None)  # which may end it, too, before its bytes are spent
    assert sent(run(equal, tmp_path / "equal")["cost"]) >= sent(summary["cost"])


def test_measured_and_planned_rounds_are_the_same_where_both_are_known(tmp_path: Path) -> None:
    growing = tiny_experiment()
    whole = whole_of(growing)
    run(growing, tmp_path / "growing")
    run(whole, tmp_path / "whole")
    assert measured_rounds([tmp_path / "growing"], [tmp_path / "whole"]) == planned_rounds(growing, whole)


def test_what_cannot_be_compared_gets_one_sentence() -> None:
    growing = tiny_experiment()
    with pytest.raises(UsageError, match="trains the full model from the first round, so it is a baseline itself"):
        compared(whole_of(growing))
    with pytest.raises(UsageError, match="the baseline of 'tiny', does not train the full model"):
        compared(growing, baseline=growing)
