"""The clock: its arithmetic by hand, whom it waits for, and that it changes nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from progfed.cli import app
from progfed.client.learner import Learner
from progfed.codec import codec
from progfed.costs import Costs
from progfed.costs.clock import Clock
from progfed.costs.phase import phase_cost
from progfed.devices import PRESETS, Device, DeviceMix
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.directory import RunDirectory
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import Schedule, every_head, in_turns, progressive, within
from progfed.server.loop import Round, federate
from progfed.wire.engine import ClientState, Task, Update
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

RUN = "0" * 16
DEVICES = [Device(memory=1e9, flops=1e5 * (1 + i), down=8e4 / (1 + i), up=1e4 * (1 + i % 3)) for i in range(6)]


@dataclass
class Crossed:
    """A real learner whose messages are kept; the clients in `lost` answer never, those in `broken` with nonsense."""

    recipe: Recipe
    data: FederatedData
    lost: Sequence[int] = ()
    broken: Sequence[int] = ()
    client_states: dict[int, ClientState] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        learner = Learner(tiny_model(), self.data, self.recipe, RUN)
        for task in tasks:
            self.tasks.append(task)
            update, self.client_states[task.client] = learner(task, self.client_states.get(task.client, {}))
            if task.client in self.broken:
                update = Update(task.client, b"nonsense")
            if task.client not in self.lost:
                self.updates.append(update)
                yield update


def timed(recipe: Recipe, **behaviour: Any) -> tuple[Crossed, list[tuple[Round, float]]]:
    data = replace(tiny_data(), devices=DEVICES)
    engine = Crossed(recipe, data, **behaviour)
    clock = Clock(engine, data, recipe, Costs(tiny_model()))
    rounds = federate(tiny_model(), data.sizes, recipe, clock, run_id=RUN)
    return engine, [(done, clock.seconds(used=done.clients, surplus=done.surplus)) for done in rounds]


def by_hand(engine: Crossed, number: int, client: int, *, most: float = math.inf) -> float:
    """The seconds of a client in a round: what crossed at the speed of its link, and its epochs at that of its chip."""
    tasks = [task for task in engine.tasks if (task.round, task.client) == (number, client)]
    sent = [u for u, t in zip(engine.updates, answered_tasks(engine), strict=True) if t in tasks]
    bits_down = sum(8 * len(task.message) for task in tasks)
    bits_up = sum(8 * len(update.message) for update in sent)
    work = phase_cost(tiny_model(), tasks[0].phase).flops * min(2 * (5 + client), most)
    chip = DEVICES[client]
    return bits_down / chip.down + work / chip.flops + bits_up / chip.up


def answered_tasks(engine: Crossed) -> list[Task]:
    return [task for task in engine.tasks if task.client not in engine.lost]


@pytest.mark.parametrize(
    "changes",
    [{}, {"up": codec("LQ-8"), "down": codec("LQ-8")}, {"up": codec("LQ-8"), "down": codec("LQ-8"), "delta": True}],
    ids=["floats", "compressed", "changes of the model"],
)
def test_a_round_takes_as_long_as_its_slowest_client_down_training_and_up(changes: dict[str, Any]) -> None:
    engine, found = timed(tiny_recipe(**changes))
    for done, seconds in found:
        cohort = engine.recipe.draw(6, done.number)
        assert len(cohort) == 3
        assert seconds == pytest.approx(max(by_hand(engine, done.number, client) for client in cohort), rel=1e-12)
    assert len({seconds for _, seconds in found}) > 3


def test_a_limit_on_steps_limits_the_time(tmp_path: Path) -> None:
    local = Local(epochs=2, batch=8, steps=1)
    engine, found = timed(tiny_recipe(local=local, cohort=6))
    for done, seconds in found:
        slowest = max(by_hand(engine, done.number, client, most=min(8, 5 + client)) for client in range(6))
        assert seconds == pytest.approx(slowest, rel=1e-12)
    experiment = tiny_experiment(data=alike(), recipe=tiny_recipe(local=local))
    planned = plan(experiment)["device"]["total"]["seconds"]
    assert planned == pytest.approx(run(experiment, tmp_path)["device_seconds"], rel=1e-12)


def test_reserves_that_were_not_needed_are_not_waited_for() -> None:
    recipe = tiny_recipe(over_selection=2.0)
    engine, found = timed(recipe)
    for done, seconds in found:
        assert done.surplus == 3
        needed = recipe.draw(6, done.number)[:3]
        assert seconds == pytest.approx(max(by_hand(engine, done.number, client) for client in needed), rel=1e-12)


@pytest.mark.parametrize("deadline", [math.inf, 1e6])
def test_for_a_client_that_never_answers_a_round_lasts_until_the_deadline(deadline: float) -> None:
    recipe = tiny_recipe(over_selection=4 / 3, deadline=deadline)
    engine, found = timed(recipe, lost=(2,))
    for done, seconds in found:
        drawn = recipe.draw(6, done.number)
        slowest = max(by_hand(engine, done.number, client) for client in [c for c in drawn if c != 2][:3])
        # as a reserve it was not needed, and nobody waits
        waited = 2 in drawn[:3] and deadline < math.inf
        assert seconds == pytest.approx(deadline if waited else slowest, rel=1e-12)


def test_an_answer_that_was_rejected_was_waited_for_all_the_same() -> None:
    recipe = tiny_recipe(over_selection=4 / 3)
    engine, found = timed(recipe, broken=(0,))
    for done, seconds in found:
        drawn = recipe.draw(6, done.number)
        waited = drawn if 0 in drawn[:3] else drawn[:3]
        assert seconds == pytest.approx(max(by_hand(engine, done.number, client) for client in waited), rel=1e-12)


# --- in a run -------------------------------------------------------------------------------------------------------


def test_devices_change_no_bit_of_training_and_add_one_field_to_the_records(tmp_path: Path) -> None:
    without = run(tiny_experiment(), tmp_path / "without")
    given = run(tiny_experiment(data=replace(tiny_data(), devices=DEVICES)), tmp_path / "with")
    assert given.pop("device_seconds") == sum(r["device_seconds"] for r in RunDirectory(tmp_path / "with").records())
    for cost in (given["cost"], without["cost"]):
        del cost["seconds"]
    assert given == without
    one, two = (RunDirectory(tmp_path / name).records()[4] for name in ("with", "without"))
    assert one.keys() - two.keys() == {"device_seconds"}


def test_a_run_that_was_stopped_has_the_same_seconds(tmp_path: Path) -> None:
    mix = DeviceMix({"phone": 1, "sensor": 1}, seed=2)
    recipe = tiny_recipe(up=codec("SP-25"), feedback=True, over_selection=1.5)
    experiment = tiny_experiment(data=replace(tiny_data(), devices=mix), recipe=recipe)
    run(experiment, tmp_path / "whole")
    for record in train(experiment, tmp_path / "stopped", data=tmp_path):
        if record["round"] == 4:
            break
    run(experiment, tmp_path / "stopped", workers=2)
    seconds = [[r["device_seconds"] for r in RunDirectory(tmp_path / name).records()] for name in ("whole", "stopped")]
    assert seconds[0] == seconds[1]


@pytest.mark.parametrize("schedule", [progressive(9, stages=3, warmup=1), in_turns(every_head(3, stages=3))])
def test_weak_clients_are_timed_by_what_they_train(schedule: Schedule) -> None:
    data = replace(tiny_data(), devices=DEVICES, deepest=(1, 3, 2, 1, 3, 3))
    recipe = tiny_recipe(cohort=6, schedule=schedule)
    engine = Crossed(recipe, data)
    clock = Clock(engine, data, recipe, Costs(tiny_model()))
    for done in federate(tiny_model(), data.sizes, recipe, clock, run_id=RUN, deepest=data.deepest):
        assert {t.phase for t in engine.tasks[-6:]} == {within(done.phase, depth) for depth in (1, 2, 3)}
        found = clock.seconds(used=done.clients, surplus=done.surplus)
        assert found == pytest.approx(max(by_hand(engine, done.number, client) for client in range(6)), rel=1e-12)


# --- planned --------------------------------------------------------------------------------------------------------


def alike() -> FederatedData:
    """Six clients of seven examples each, on the same device."""
    data = tiny_data()
    return replace(data, sizes=(7,) * 6, load=lambda client: data.client(2), devices=DEVICES[2])


@pytest.mark.parametrize("up", ["float", "LQ-8"])
def test_planned_hours_are_the_runs_where_all_clients_are_alike(tmp_path: Path, up: str) -> None:
    experiment = tiny_experiment(data=alike(), recipe=tiny_recipe(up=codec(up), over_selection=1.5))
    planned = plan(experiment)["device"]
    summary = run(experiment, tmp_path)
    records = RunDirectory(tmp_path).records()
    assert planned["total"]["seconds"] == pytest.approx(summary["device_seconds"], rel=1e-12)
    for row in planned["stages"]:
        own = sum(record["device_seconds"] for record in records if record["stage"] == row["stage"])
        assert row["seconds"] == pytest.approx(own, rel=1e-12)
    asked = sum(record["clients"] + record.get("surplus", 0) for record in records)
    assert planned["share"] * 6 * len(records) == asked
    assert planned["total"]["down_bytes"] * asked / len(records) == summary["cost"]["down_bytes"]


def test_hours_of_devices_that_differ_are_not_planned_and_a_given_device_is() -> None:
    experiment = tiny_experiment(data=replace(tiny_data(), devices=DEVICES))
    assert "device" not in plan(experiment)
    one, half = (plan(experiment, device=Device(flops=f))["device"]["total"]["seconds"] for f in (1e6, 2e6))
    assert one == pytest.approx(2 * half)


def test_a_stage_that_does_not_fit_is_said_so() -> None:
    experiment = tiny_experiment()
    peaks = [row["memory_bytes"] for row in plan(experiment)["stages"]]
    found = plan(experiment, device=Device(memory=peaks[1]))["device"]
    assert [row["fits"] for row in found["stages"]] == [True, True, False]
    assert not found["total"]["fits"]


def test_plan_on_a_device_and_a_link_from_the_command_line() -> None:
    asked = ["plan", "federated", "--run", "cifar10", "--rounds", "40", "--device", "phone", "--link", "10Mbit/2Mbit"]
    (found,) = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    phone, total = PRESETS["phone"], found["device"]["total"]
    visits = 10 * 40  # a cohort of ten in each round
    expected = 8 * found["total"]["down_bytes"] / visits / 10e6 + 8 * found["total"]["up_bytes"] / visits / 2e6
    expected += found["total"]["flops"] / visits / phone.flops
    assert total["seconds"] == pytest.approx(40 * expected)
    shown = CliRunner().invoke(app, asked).stdout
    assert "on a phone, if it takes part in every round" in shown
    assert f"{total['seconds'] / 3600:.2f}" in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "fone"], "'fone' is no device: did you mean phone"),
        (["--link", "3Mbit"], "--link 3Mbit needs --device"),
        (["--device", "phone", "--link", "3MB"], "down of a device is a positive number"),
    ],
)
def test_a_wrong_device_is_one_sentence(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["plan", "demo", *options])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_a_schedule_of_one_phase_is_planned_too() -> None:
    experiment = tiny_experiment(recipe=tiny_recipe(schedule=progressive(3, stages=3)))
    assert plan(experiment, device=DEVICES[0])["device"]["total"]["rounds"] == 3
