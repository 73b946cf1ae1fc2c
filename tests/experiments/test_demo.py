"""The demo is the library's default recipe, with nothing set by hand for growing."""

from __future__ import annotations

from dataclasses import replace

from progfed.experiments.demo import ROUNDS, RUNS, STAGES
from progfed.heads import Grid
from progfed.recipe.rate import Cosine
from progfed.recipe.recipe import Local
from progfed.runs.compare import compared
from progfed.schedule import length, progressive


def test_small_messages_are_the_growing_run_with_a_budget_and_nothing_else() -> None:
    _, growing, small = RUNS
    assert small == replace(growing, run="small-messages", recipe=replace(growing.recipe, bytes=0.02))


def test_both_runs_of_the_demo_share_one_recipe_and_the_growing_one_has_the_default_schedule() -> None:
    whole, growing, _ = RUNS
    assert growing.recipe == replace(whole.recipe, schedule=progressive(ROUNDS, stages=STAGES))
    assert isinstance(growing.recipe.rate, Cosine)
    assert growing.recipe.local.clip == Local().clip
    assert all(isinstance(growing.make_model().make(f"G{stage}"), Grid) for stage in range(1, STAGES))


def test_the_third_run_of_the_demo_has_the_rounds_that_the_growing_ones_bytes_buy_rounded_up() -> None:
    whole, growing, _ = RUNS
    *_, equal = compared(growing, baseline=whole)
    assert length(equal.recipe.schedule) == 35
