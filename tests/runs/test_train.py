"""Runs on disk: complete, reproducible, resumable at any round, and never mixed up."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from progfed.errors import DataError, StorageError, TrainingError, UsageError
from progfed.models.convnet import convnet_mnist
from progfed.population import from_clients
from progfed.recipe.optimizers import fedadam
from progfed.recipe.rate import Constant
from progfed.runs.directory import RunDirectory
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe, identity
from progfed.runs.train import run, train
from progfed.schedule import end_to_end, progressive
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe


def lines(folder: Path) -> list[dict[str, Any]]:
    """The records without what depends on the clock."""
    records = RunDirectory(folder).records()
    for record in records:
        del record["seconds"], record["total"]["seconds"]
    return records


def outcome(folder: Path) -> tuple[list[dict[str, Any]], str, bytes]:
    summary = json.loads((folder / "summary.json").read_text())
    return lines(folder), summary["model_sha256"], (folder / "model.safetensors").read_bytes()


def test_a_run_leaves_its_records_model_and_summary(tmp_path: Path) -> None:
    summary = run(tiny_experiment(), tmp_path)
    names = {path.name for path in tmp_path.iterdir()} - {".lock"}
    models = {"model.safetensors", "best.safetensors"}
    assert names == {"experiment.json", "rounds.jsonl", "checkpoint", "summary.json", *models}
    records = lines(tmp_path)
    assert [record["round"] for record in records] == list(range(1, 12))
    wanted = {"round", "stage", "warmup", "metric", "loss", "clients", "rejected", "down_bytes", "up_bytes", "flops"}
    assert wanted <= records[0].keys()
    assert summary["metric"] == records[-1]["metric"]
    assert summary["cost"]["up_bytes"] == sum(record["up_bytes"] for record in records)
    assert summary["cost"]["flops"] == sum(record["flops"] for record in records)


def test_the_same_seed_gives_the_same_records_and_model_twice_and_another_seed_does_not(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        run(tiny_experiment(), tmp_path / folder)
    other = tiny_experiment(recipe=tiny_recipe(seed=4))
    run(other, tmp_path / "c")
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b")
    assert outcome(tmp_path / "a")[1] != outcome(tmp_path / "c")[1]


def test_the_model_is_evaluated_before_it_grows(tmp_path: Path) -> None:
    run(tiny_experiment(evaluate_every=100), tmp_path)
    evaluated = [(r["round"], r["stage"]) for r in lines(tmp_path) if r["metric"] is not None]
    assert evaluated == [(1, 1), (2, 2), (4, 2), (5, 3), (7, 3), (11, 3)]  # the last round of each phase


def test_lines_after_the_committed_round_are_written_again(tmp_path: Path) -> None:
    experiment = tiny_experiment()
    run(experiment, tmp_path / "whole")
    folder = tmp_path / "cut"
    for record in train(experiment, folder, data=tmp_path):
        if record["round"] == 5:
            break
    with open(folder / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 6, "half a li')
    run(experiment, folder)
    assert outcome(folder) == outcome(tmp_path / "whole")


def test_a_complete_run_is_not_trained_again(tmp_path: Path) -> None:
    first = run(tiny_experiment(), tmp_path)
    assert list(train(tiny_experiment(), tmp_path, data=tmp_path)) == []
    assert run(tiny_experiment(), tmp_path) == first


def test_another_experiments_directory_is_refused_with_the_difference(tmp_path: Path) -> None:
    run(tiny_experiment(), tmp_path)
    other = tiny_experiment(recipe=tiny_recipe(cohort=2, seed=9))
    with pytest.raises(StorageError, match=r"recipe\.cohort 3 there, 2 now, recipe\.seed 3 there, 9 now.*--fresh"):
        run(other, tmp_path)


def test_a_folder_of_a_run_that_was_refused_is_free_for_the_corrected_one(tmp_path: Path) -> None:
    test = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)
    wrong = from_clients([(torch.zeros(4, 6), torch.full((4,), 9))] * 6, test=test, classes=3)
    mistakes: list[tuple[Experiment, dict[str, Any], type[Exception]]] = [
        (tiny_experiment(recipe=tiny_recipe(cohort=60)), {}, UsageError),
        (tiny_experiment(data=wrong), {}, DataError),
        (tiny_experiment(recipe=tiny_recipe(seed=8)), {"device": "tpu"}, UsageError),
    ]
    for experiment, options, error in mistakes:
        with pytest.raises(error):
            list(train(experiment, tmp_path, data=tmp_path, **options))
    assert run(tiny_experiment(), tmp_path)["rounds"] == 11
    assert RunDirectory(tmp_path).read("experiment.json") == describe(tiny_experiment())


def test_a_folder_with_one_finished_round_belongs_to_its_experiment(tmp_path: Path) -> None:
    next(train(tiny_experiment(), tmp_path, data=tmp_path))
    with pytest.raises(StorageError, match="another experiment"):
        run(tiny_experiment(recipe=tiny_recipe(seed=9)), tmp_path)


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(StorageError, match="other files"):
        run(tiny_experiment(), tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"thesis.txt", ".lock"}


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    running = train(tiny_experiment(), tmp_path, data=tmp_path)
    next(running)
    with pytest.raises(StorageError, match="another process is running"):
        run(tiny_experiment(), tmp_path)
    running.close()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        run(tiny_experiment(), tmp_path / "file" / "run")


def test_resuming_with_another_number_of_threads_is_refused(tmp_path: Path) -> None:
    running = train(tiny_experiment(), tmp_path, data=tmp_path)
    next(running)
    running.close()
    state = tmp_path / "checkpoint" / "round-00000001" / "state.json"
    manifest = state.with_name("manifest.json")
    text = state.read_text().replace('"threads": 1', '"threads": 2')
    state.write_text(text)
    digests = json.loads(manifest.read_text())
    digests["sha256"]["state.json"] = hashlib.sha256(text.encode()).hexdigest()
    manifest.write_text(json.dumps(digests))
    with pytest.raises(StorageError, match="begun with threads 2, now it is 1"):
        run(tiny_experiment(), tmp_path)


def test_a_failed_round_keeps_what_was_reached(tmp_path: Path) -> None:
    class Exploding:
        def __call__(self, moment: Any) -> float:
            return 0.1 if moment.t < 3 else 1e38

    experiment = tiny_experiment(recipe=tiny_recipe(schedule=end_to_end(6, stages=3), rate=Exploding()))
    with pytest.raises(TrainingError, match="not finite"):
        run(experiment, tmp_path)
    assert [record["round"] for record in lines(tmp_path)] == [1, 2, 3]
    assert not (tmp_path / "summary.json").exists()


def test_an_experiment_is_described_by_values_and_named_by_its_description() -> None:
    experiment = tiny_experiment(model=partial(convnet_mnist, classes=10))
    assert describe(experiment)["model"] == {
        "call": "progfed.models.convnet:convnet_mnist",
        "args": [],
        "classes": 10,
    }
    assert json.loads(json.dumps(describe(experiment))) == describe(experiment)
    assert identity(experiment) == identity(replace(experiment))
    changed = replace(experiment, recipe=replace(experiment.recipe, rate=Constant(0.1)))
    assert identity(experiment) != identity(changed)


def test_models_and_data_given_as_values_are_told_apart() -> None:
    one = tiny_experiment(model=tiny_model())
    assert identity(one) != identity(replace(one, data=tiny_data(clients=5)))
    assert identity(one) != identity(replace(one, model=convnet_mnist(10)))


CHILD = """
import sys, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
from pathlib import Path
from tiny import tiny_experiment, tiny_recipe
from progfed.runs.train import train
from progfed.schedule import progressive
from progfed.recipe.optimizers import fedadam
recipe = tiny_recipe(server=fedadam(), schedule=progressive(24, stages=3, warmup=2))
options = dict(data=Path("."), workers=2, checkpoint_every=4)
for record in train(tiny_experiment(recipe=recipe), Path({folder!r}), **options):
    print(record["round"], flush=True)
"""


def child(folder: Path) -> subprocess.Popen[str]:
    code = CHILD.format(tests=str(Path(__file__).parents[1]), folder=str(folder))
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_killed_process_continues_to_the_same_bits(tmp_path: Path) -> None:
    """SIGKILL of a whole program, begun anew; test_reliability_interruption.py kills more, and forks."""
    recipe = tiny_recipe(server=fedadam(), schedule=progressive(24, stages=3, warmup=2))
    run(tiny_experiment(recipe=recipe), tmp_path / "whole")
    kills = 0
    for _ in range(2):
        process = child(tmp_path / "killed")
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 10 and not kills:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
        process.stdout.close()
        if process.wait() == 0:
            break
    assert kills == 1
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def test_training_leaves_the_callers_generator_and_threads_alone(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    before = torch.get_rng_state()
    run(tiny_experiment(), tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == 2


def test_experiments_are_values_that_differ_by_replace() -> None:
    experiment: Experiment = tiny_experiment()
    assert replace(experiment, run="other").recipe is experiment.recipe
