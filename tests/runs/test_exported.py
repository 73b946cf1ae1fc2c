"""Trained weights on disk under the user's own names, and `progfed export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

from progfed import Experiment, Local, Recipe, from_clients, progressive, split
from progfed.cli import app
from progfed.errors import StorageError
from progfed.evaluate import evaluate
from progfed.runs.exported import state_dict
from progfed.runs.train import run, train
from tiny import tiny_experiment


def net() -> nn.Sequential:
    """With BatchNorm, whose count of batches is a whole number."""
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def experiment(**changes: Any) -> Experiment:
    torch.manual_seed(0)
    pairs = [(torch.randn(12, 6), torch.randint(0, 3, (12,))) for _ in range(4)]
    settings: dict[str, Any] = {
        "name": "own",
        "model": split(net(), stages=2, example=torch.zeros(2, 6)),
        "data": from_clients(pairs[:3], test=pairs[3], classes=3),
        "recipe": Recipe(schedule=progressive(6, stages=2), cohort=2, local=Local(batch=4)),
    }
    return Experiment(**{**settings, **changes})


def test_what_is_on_disk_loads_into_the_original_module_and_gives_the_reported_metric(tmp_path: Path) -> None:
    asked = experiment()
    summary = run(asked, tmp_path)
    test = asked.make_data(tmp_path).test_examples()
    mine = net()
    mine.load_state_dict(load_file(tmp_path / "exported.safetensors"), strict=True)
    assert evaluate(mine, test) == pytest.approx(summary["metric"])
    mine.load_state_dict(state_dict(tmp_path, "best"), strict=True)
    assert evaluate(mine, test) == pytest.approx(summary["best_metric"])


@pytest.mark.parametrize("name", ["mine.safetensors", "mine.pt"])
@pytest.mark.parametrize("more", [[], ["--best"]])
def test_export_writes_a_plain_state_dict(name: str, more: list[str], tmp_path: Path) -> None:
    run(experiment(), tmp_path / "run")
    to = tmp_path / name
    done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", str(to), "--json", *more])
    assert done.exit_code == 0, done.output
    found = load_file(to) if to.suffix == ".safetensors" else torch.load(to, weights_only=True)
    net().load_state_dict(found, strict=True)
    wanted = state_dict(tmp_path / "run", "best" if more else "last")
    assert all(torch.equal(value, wanted[key]) for key, value in found.items())
    assert json.loads(done.output)["tensors"].keys() == found.keys()


def test_a_model_of_parts_is_exported_under_the_names_of_its_full_stage(tmp_path: Path) -> None:
    asked = tiny_experiment()
    run(asked, tmp_path)
    assert not (tmp_path / "exported.safetensors").exists()
    asked.make_model().at(3).load_state_dict(state_dict(tmp_path), strict=True)


def test_a_model_that_never_reached_its_last_stage_has_no_file_under_its_own_names(tmp_path: Path) -> None:
    run(experiment(recipe=Recipe(schedule=progressive(4, stages=2)[:1], cohort=2, local=Local(batch=4))), tmp_path)
    assert not (tmp_path / "exported.safetensors").exists()


def test_what_cannot_be_exported_is_said_in_a_sentence(tmp_path: Path) -> None:
    going = train(experiment(), tmp_path / "half", data=tmp_path)
    next(going)
    going.close()  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match="holds no run that is complete"):
        state_dict(tmp_path / "half")
    run(experiment(), tmp_path / "run")
    for name, wanted in (
        ("a.onnx", "give your own module"),
        ("a.txt", "ends in .safetensors"),
        ("no/a.pt", "no folder"),
    ):
        done = CliRunner().invoke(app, ["export", str(tmp_path / "run"), "--to", str(tmp_path / name)])
        assert wanted in str(done.exception)
    (tmp_path / "run" / "exported.safetensors").write_bytes(b"damaged")
    with pytest.raises(StorageError, match="cannot be read"):
        state_dict(tmp_path / "run")
