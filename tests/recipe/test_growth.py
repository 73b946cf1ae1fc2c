"""Adaptive growth: what a policy sees, when it ends a stage, and that a resumed run decides the same."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from progfed.cli.settings import override
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.recipe.growth import Growth, Movement, Plateau, Watch, stalled
from progfed.recipe.optimizers import fedadam
from progfed.recipe.privacy import Privacy
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import earliest, realised, turn_at
from progfed.runs.directory import RunDirectory
from progfed.runs.identity import identity
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import Phase, length, progressive
from progfed.server.loop import Progress, Round, federate
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

AT_ONCE: dict[str, Any] = {"window": 1, "tolerance": 0.999}  # stalls whatever happens, as soon as it may


def rounds(recipe: Recipe, *, start: Progress | None = None, workers: int = 1) -> list[Round]:
    model, data = tiny_model(), tiny_data()
    with LocalEngine(model, data, recipe, workers=workers) as engine:
        return list(federate(model, data.sizes, recipe, engine, start=start))


def bits(done: Sequence[Round]) -> list[Any]:
    """All that a round decides and leaves behind, the clock aside."""
    return [
        (r.number, r.phase.stage, r.lr, r.loss, r.closes, r.freed, r.signal, replace(r.cost, seconds=0)) for r in done
    ] + [{name: value.tolist() for name, value in done[-1].progress.params.items()}]


def stages(done: Sequence[Round]) -> list[int]:
    return [r.phase.stage for r in done]


# --- the signals ----------------------------------------------------------------------------------------------------


def moved(policy: Movement, *steps: tuple[float, float]) -> Watch:
    watch = Watch()
    for step in steps:
        watch = policy.see(watch, 0.0, {"E1.w": torch.tensor(step)})
    return watch


def test_movement_is_the_fading_distance_over_the_fading_path() -> None:
    policy = Movement(memory=0.5)
    assert moved(policy, (3.0, 4.0)).signal == (1.0,)
    assert moved(policy, (1.0, 0.0), (0.0, 1.0)).signal[-1] == pytest.approx(math.hypot(0.5, 1.0) / 1.5)
    assert moved(policy, (1.0, 0.0), (2.0, 0.0), (8.0, 0.0)).signal == (1.0, 1.0, 1.0)
    assert moved(policy, (2.0, 0.0), (-1.0, 0.0)).signal[-1] == 0.0


def test_a_round_in_which_nobody_trained_the_block_tells_movement_nothing() -> None:
    watch = moved(Movement(), (1.0, 0.0))
    assert Movement().see(watch, 0.0, {"E1.w": torch.zeros(2)}) is watch


@given(st.lists(st.tuples(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32)), min_size=1, max_size=8))
def test_movement_lies_between_0_and_1_and_has_no_unit(steps: list[tuple[float, float]]) -> None:
    steps = [step if math.hypot(*step) > 1e-3 else (1.0, 1.0) for step in steps]
    signal = moved(Movement(), *steps).signal
    assert all(0 <= value <= 1 + 1e-6 for value in signal)
    assert moved(Movement(), *((4 * x, 4 * y) for x, y in steps)).signal == signal


def test_a_signal_has_stalled_when_its_mean_no_longer_falls_by_the_tolerance() -> None:
    policy = Plateau(window=2, tolerance=0.1)
    assert not stalled(policy, Watch(signal=(9.0, 9.0, 9.0)))  # two windows are not full
    assert not stalled(policy, Watch(signal=(2.0, 4.0, 3.0, 2.0)))  # 3 to 2.5
    assert stalled(policy, Watch(signal=(2.0, 4.0, 3.0, 2.5)))  # 3 to 2.75
    assert stalled(policy, Watch(signal=(1.0, 1.0, 5.0, 5.0)))  # rising


# --- the schedule that results --------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.integers(0, 2),
    st.data(),
)
def test_the_rounds_that_are_left_go_to_the_last_phase_or_are_given_up(
    lengths: list[int], warmup: int, data: st.DataObject
) -> None:
    schedule = progressive(sum(lengths), stages=len(lengths), lengths=lengths, warmup=warmup)
    over = data.draw(st.integers(0, len(schedule) - 1))
    had = [phase.rounds if phase.warmup else data.draw(st.integers(1, phase.rounds)) for phase in schedule[:over]]
    freed = sum(phase.rounds for phase in schedule[:over]) - sum(had)
    kept, given_up = (realised(schedule, Plateau(keep_total=keep), had) for keep in (True, False))
    assert length(kept) == length(schedule)
    assert length(given_up) == length(schedule) - freed
    assert [phase.rounds for phase in kept[:over]] == had
    assert kept[over:-1] == schedule[over:-1]


def test_phases_that_may_end_end_no_earlier_than_least_and_two_windows() -> None:
    schedule = progressive(30, stages=3, lengths=(9, 9, 12), warmup=2, overlap=0)
    policy = Plateau(least=3, window=2)
    assert [p.rounds for p in earliest(schedule, policy)] == [4, 2, 4, 2, 22]
    assert [p.rounds for p in earliest(schedule, Plateau(least=20))] == [p.rounds for p in schedule]


@pytest.mark.parametrize("kind", [Plateau, Movement])
def test_a_stage_that_has_stalled_ends_and_the_total_is_kept(kind: Any) -> None:
    schedule = progressive(12, stages=3, lengths=(4, 5, 3), warmup=1, overlap=0)
    done = rounds(tiny_recipe(schedule=schedule, growth=kind(least=3, **AT_ONCE)))
    assert stages(done) == [1] * 3 + [2] * 4 + [3] * 7
    assert [r.number for r in done if r.closes] == [3, 4, 7, 8, 14]
    assert [r.freed for r in done if r.closes] == [1, 0, 2, 0, 0]
    assert len(done) == sum(phase.rounds for phase in schedule)
    shorter = rounds(tiny_recipe(schedule=schedule, growth=kind(least=3, keep_total=False, **AT_ONCE)))
    assert stages(shorter) == stages(done)[:-3]


def test_the_learning_rate_follows_the_schedule_that_results() -> None:
    schedule = progressive(12, stages=3, lengths=(4, 5, 3), hold=False, overlap=0)
    kept, shorter = (
        rounds(tiny_recipe(schedule=schedule, growth=Plateau(least=2, keep_total=keep, **AT_ONCE)))
        for keep in (True, False)
    )
    fixed = rounds(tiny_recipe(schedule=schedule))
    assert [r.lr for r in kept] == [r.lr for r in fixed]  # one cosine over T, whenever the model grows
    assert shorter[-1].lr == pytest.approx(0.2 * (1 + math.cos(math.pi * 6 / 7)) / 2)  # and over what is left of it
    turn = turn_at(realised(schedule, Plateau(), [2, 2]), 5)
    assert turn is not None
    assert (turn.moment.stage_t, turn.moment.stage_of) == (0, 8)


@pytest.mark.parametrize("policy", [Plateau(window=50), Movement(window=50), Plateau(tolerance=0.0, least=50)])
def test_a_policy_that_never_ends_a_stage_is_the_fixed_schedule_to_the_bit(policy: Growth) -> None:
    fixed, adaptive = rounds(tiny_recipe()), rounds(tiny_recipe(growth=policy))
    assert bits([replace(r, signal=None) for r in adaptive]) == bits(fixed)


def test_what_a_policy_sees_decides() -> None:
    """Any tolerance between two drops of the loss ends the stage exactly where the loss first fell by less."""
    schedule = progressive(30, stages=3, lengths=(12, 12, 6), hold=False)
    policy = Plateau(window=2, least=1, tolerance=0.15)
    done = [r for r in rounds(tiny_recipe(schedule=schedule, growth=policy)) if r.phase.stage == 1]
    losses = [r.loss for r in done]
    ends = [
        t
        for t in range(4, len(losses) + 1)
        if sum(losses[t - 4 : t - 2]) - sum(losses[t - 2 : t]) < 0.15 * sum(losses[t - 4 : t - 2])
    ]
    assert ends == [len(losses)]
    assert len(losses) < 12


# --- stopping and continuing ----------------------------------------------------------------------------------------

POLICIES = [Plateau(window=2, least=2, tolerance=0.15), Movement(window=2, least=2, tolerance=0.15)]


@pytest.mark.parametrize("policy", POLICIES, ids=["plateau", "movement"])
def test_a_stopped_run_takes_the_same_decisions_to_the_same_bits(policy: Growth, tmp_path: Path) -> None:
    recipe = tiny_recipe(schedule=progressive(12, stages=3, lengths=(6, 5, 1), warmup=1), growth=policy)
    experiment = tiny_experiment(recipe=replace(recipe, server=fedadam()))
    run(experiment, tmp_path / "whole")
    records = outcome(tmp_path / "whole")
    assert any("freed" in json.loads(line) for line in records[1:])
    for stop in (2, 5, 9, 11):
        folder = tmp_path / f"stop{stop}"
        for record in train(experiment, folder, data=tmp_path):
            if record["round"] == stop:
                break
        run(experiment, folder)
        assert outcome(folder) == records


def outcome(folder: Path) -> list[str]:
    records = RunDirectory(folder).records()
    for record in records:
        del record["seconds"], record["total"]["seconds"]
    return [json.loads((folder / "summary.json").read_text())["model_sha256"], *map(json.dumps, records)]


def test_a_run_that_gives_rounds_up_ends_complete(tmp_path: Path) -> None:
    policy = Plateau(least=2, keep_total=False, **AT_ONCE)
    experiment = tiny_experiment(
        recipe=tiny_recipe(growth=policy, schedule=progressive(9, stages=3, warmup=1, overlap=0)), evaluate_every=100
    )
    summary = run(experiment, tmp_path)
    records = RunDirectory(tmp_path).records()
    assert summary["rounds"] == len(records)
    evaluated = [record["round"] for record in records if record["metric"] is not None]
    assert evaluated == [r["round"] for r, after in zip(records, [*records[1:], {}], strict=True) if changes(r, after)]


def changes(record: dict[str, Any], after: dict[str, Any]) -> bool:
    return (record["stage"], record["warmup"]) != (after.get("stage"), after.get("warmup"))


def test_a_run_with_a_fixed_schedule_is_recorded_and_named_as_before(tmp_path: Path) -> None:
    run(tiny_experiment(), tmp_path)
    assert not any(record.keys() & {"signal", "freed"} for record in RunDirectory(tmp_path).records())
    state = json.loads(next((tmp_path / "checkpoint").glob("*/state.json")).read_text())
    assert "growth" not in state
    assert identity(tiny_experiment()) == identity(tiny_experiment(recipe=tiny_recipe(growth=None)))
    assert identity(tiny_experiment()) != identity(tiny_experiment(recipe=tiny_recipe(growth=Plateau())))


# --- settings, plans, refusals --------------------------------------------------------------------------------------


def test_policies_are_set_by_name_and_then_by_their_parts() -> None:
    experiment = override(tiny_experiment(), "growth=movement")
    assert experiment.recipe.growth == Movement()
    assert override(experiment, "growth.window=5").recipe.growth == Movement(window=5)
    assert override(experiment, "keep_total=false").recipe.growth == Movement(keep_total=False)
    assert override(experiment, "growth=fixed").recipe.growth is None
    with pytest.raises(
        UsageError, match="takes one of fixed, plateau, movement, or your own as module:name, not 'fast'"
    ):
        override(experiment, "growth=fast")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plateau(window=0), "least and window of 1 round or more"),
        (lambda: Movement(tolerance=1.0), "a tolerance of 0 to below 1"),
        (lambda: Movement(memory=1.0), "memory of a movement is between 0 and 1"),
        (
            lambda: tiny_recipe(growth=Plateau(), weighting="uniform", privacy=Privacy(clip=1.0, noise=1.0)),
            r"use growth=Movement\(\) with privacy",
        ),
    ],
)
def test_what_cannot_work_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_plan_takes_the_longest_and_bounds_the_earliest(tmp_path: Path) -> None:
    schedule = progressive(12, stages=3, lengths=(4, 5, 3))
    fixed = plan(tiny_experiment(recipe=tiny_recipe(schedule=schedule)))
    experiment = tiny_experiment(recipe=tiny_recipe(schedule=schedule, growth=Plateau(least=2, **AT_ONCE)))
    planned = plan(experiment)
    assert (planned["total"], planned["stages"]) == (fixed["total"], fixed["stages"])
    assert "earliest" not in fixed
    counted = run(experiment, tmp_path)["cost"]
    assert planned["earliest"]["up_bytes"] == counted["up_bytes"]
    assert planned["earliest"]["down_bytes"] == counted["down_bytes"]
    assert planned["earliest"]["up_bytes"] > planned["total"]["up_bytes"]  # early growth buys rounds of the full model


def test_phases_of_other_strategies_are_watched_by_the_newest_block_they_train() -> None:
    schedule = (Phase(3, 4, trains=(1,)), Phase(3, 4, trains=(2,)), Phase(3, 4))
    done = rounds(tiny_recipe(schedule=schedule, growth=Movement(window=2, least=4)))
    assert [r.signal is not None for r in done] == [True] * 8 + [False] * 4
    assert done[0].signal == done[4].signal == 1.0
