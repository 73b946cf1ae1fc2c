"""Every extension gives the same bits on two workers, on Flower's simulation, and resumed; its bytes are planned."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import progfed
from extensions.client_optimizer import Signs
from extensions.freezing_schedule import newest_then_all
from extensions.metrics_on_clients import METRICS
from progfed import Scaffold
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import progressive
from ten import FOLDER, NAMES, experiment
from tiny import tiny_experiment, tiny_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of an extension's run on two workers, trained when it is first asked for."""

    @cache
    def trained(name: str) -> Path:
        out = tmp_path_factory.mktemp(name)
        run(experiment(name), out, workers=2)
        return out

    return trained


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs on Flower's simulation, which is started once for the ten."""
    out = tmp_path_factory.mktemp("simulation")
    paths = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    command = [
        sys.executable,
        "-c",
        f"from pathlib import Path; from flower.many import main; main(Path({str(out)!r}))",
    ]
    told = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return out


def outcome(out: Path) -> tuple[list[Record], dict[str, Any]]:
    """The records and the summary of a run, without what the machine's own clock says."""
    directory = RunDirectory(out)
    records = [{k: v for k, v in one.items() if k not in ("seconds", "total")} for one in directory.records()]
    summary = directory.read("summary.json") or {}
    summary["cost"]["seconds"] = 0.0
    return records, summary


def documented() -> set[str]:
    listed = re.findall(r"^::: ([\w.]+)", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    short = {path.rpartition(".")[2] for path in listed} & set(progfed.__all__)
    return {*listed, *(f"progfed.{name}" for name in short)}


def test_there_is_one_file_for_each_of_the_ten() -> None:
    assert len(NAMES) == 10


@pytest.mark.parametrize("name", NAMES)
def test_an_extension_imports_only_documented_names(name: str) -> None:
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        assert not isinstance(node, ast.Import) or all("progfed" not in alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("progfed"):
            assert {f"{node.module}.{alias.name}" for alias in node.names} <= documented()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_run_goes_on_to_the_same_bits(name: str, whole: Any, tmp_path: Path) -> None:
    part = train(experiment(name), tmp_path, data=tmp_path)
    list(islice(part, 3))
    part.close()
    run(experiment(name), tmp_path, workers=1)
    assert outcome(tmp_path) == outcome(whole(name))


@pytest.mark.parametrize("name", NAMES)
def test_flowers_simulation_gives_the_same_bits(name: str, whole: Any, simulation: Path) -> None:
    assert outcome(simulation / name) == outcome(whole(name))


@pytest.mark.parametrize("name", NAMES)
def test_bytes_flops_and_memory_are_planned_as_they_are_counted(name: str, whole: Any) -> None:
    planned, summary = plan(experiment(name)), outcome(whole(name))[1]
    assert planned["exact"]
    if name != "own_growth":  # which may end stages early
        assert {key: planned["total"][key] for key in ("down_bytes", "up_bytes", "paper_bytes")} == {
            key: summary["cost"][key] for key in ("down_bytes", "up_bytes", "paper_bytes")
        }
    longest, earliest = planned["total"], planned.get("earliest", planned["total"])
    bounds = sorted((longest["up_bytes"], earliest["up_bytes"]))
    assert bounds[0] <= summary["cost"]["up_bytes"] <= bounds[1]
    assert planned["total"]["memory_bytes"] == summary["memory_bytes"]


# --- what each of them does ------------------------------------------------------------------------------------------


def test_control_variates_from_outside_are_those_of_scaffold_to_the_bit(whole: Any, tmp_path: Path) -> None:
    ours = experiment("client_state")
    theirs = replace(ours, recipe=replace(ours.recipe, method=Scaffold()))
    summary = run(theirs, tmp_path, workers=1)
    assert summary["model_sha256"] == outcome(whole("client_state"))[1]["model_sha256"]
    plain = plan(replace(ours, recipe=replace(ours.recipe, method="plain")))["total"]
    planned = plan(ours)["total"]
    assert planned["up_bytes"] > 1.5 * plain["up_bytes"]
    assert planned["memory_bytes"] > plain["memory_bytes"]


def test_the_state_of_a_client_optimizer_is_in_the_plan() -> None:
    with_state = plan(experiment("client_optimizer"))["total"]["memory_bytes"]
    recipe = experiment("client_optimizer").recipe
    without = replace(recipe, local=replace(recipe.local, optimizer=torch.optim.SGD))
    assert with_state > plan(replace(experiment("client_optimizer"), recipe=without))["total"]["memory_bytes"]
    assert recipe.local.optimizer is Signs


def test_heads_are_never_sent_and_clients_say_how_good_theirs_are(whole: Any) -> None:
    records, _ = outcome(whole("personal_heads"))
    plain = plan(tiny_experiment(recipe=tiny_recipe(schedule=progressive(4, stages=3, warmup=1))))["total"]
    planned = plan(experiment("personal_heads"))["total"]
    assert planned["down_bytes"] < plain["down_bytes"]
    assert planned["paper_bytes"] < plain["paper_bytes"]
    assert [record["metric"] for record in records] == [record["on_clients"]["accuracy"] for record in records]
    assert all(record["on_clients"]["accuracy deviation"] >= 0 for record in records)


def test_several_metrics_of_clients_are_in_records_and_summary(whole: Any) -> None:
    records, summary = outcome(whole("metrics_on_clients"))
    assert set(summary["metrics"]) == set(METRICS)
    assert all(set(record["metrics"]) == set(METRICS) for record in records)


def test_a_policy_of_ones_own_has_ended_stages_early(whole: Any) -> None:
    assert sum(record.get("freed", 0) for record in outcome(whole("own_growth"))[0]) > 0


def test_a_schedule_of_ones_own_sends_back_only_what_it_trains(whole: Any) -> None:
    records = outcome(whole("freezing_schedule"))[0]
    assert experiment("freezing_schedule").recipe.schedule == newest_then_all(5, 3)
    assert records[2]["up_bytes"] < records[3]["up_bytes"]


def test_asynchronous_rounds_have_simulated_seconds(whole: Any) -> None:
    records, summary = outcome(whole("asynchronous"))
    assert summary["device_seconds"] == pytest.approx(sum(record["device_seconds"] for record in records))
    assert all(record["clients"] == 2 for record in records)
