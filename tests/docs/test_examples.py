"""The programs in examples/ run, at a reduced size, and say what they promise."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import progfed
from progfed.runs.train import train

FOLDER = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(FOLDER / f"{name}.py")
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


def numbers(text: str, unit: str) -> list[float]:
    return [float(number) for number in re.findall(rf"([\d.]+) {unit}", text)]


def test_every_example_is_listed_with_what_it_prints() -> None:
    listed = re.findall(r"^## \[(\w+)\.py\]", (FOLDER / "README.md").read_text(), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in FOLDER.glob("*.py"))


def test_the_quickstart_sends_fewer_bytes_when_it_grows(capsys: pytest.CaptureFixture[str]) -> None:
    example("quickstart").main(6)
    whole, growing = numbers(capsys.readouterr().out, "MB")
    assert growing < whole


def test_the_original_network_gets_back_the_weights_that_were_trained(capsys: pytest.CaptureFixture[str]) -> None:
    example("own_model").main(3, clients=200)
    trained, exported = numbers(capsys.readouterr().out, "%")
    assert trained == exported


def test_own_files_are_read_from_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("own_data").main(2, tmp_path / "machines")
    assert "12 machines" in capsys.readouterr().out


def test_the_language_model_writes_something_else_after_training(capsys: pytest.CaptureFixture[str]) -> None:
    example("language_model").main(3)
    before, after, _ = capsys.readouterr().out.splitlines()
    assert before.split(":", 1)[1].strip()[:14] == after.split(":", 1)[1].strip()[:14]
    assert before.split(":", 1)[1].strip() != after.split(":", 1)[1].strip()


def test_each_codec_sends_less_than_the_one_before(capsys: pytest.CaptureFixture[str]) -> None:
    example("compression").main(4, clients=200)
    sent = numbers(capsys.readouterr().out, "MB")
    up, down = sent[::2], sent[1::2]
    assert up == sorted(up, reverse=True)
    assert len(set(up)) == 3
    assert down[0] > down[1] == down[2]


SIX = ["image_folder", "text_classifier", "regression", "multi_label", "lora", "lightning_module"]


@pytest.mark.parametrize("name", SIX)
def test_a_program_has_thirty_lines_and_does_not_look_inside(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith(("from ", "import "))]
    assert len(lines) <= 30
    used = set(re.findall(r"progfed\.(\w+)", text)) - {"metrics"}
    assert used <= set(progfed.__all__)
    assert set(re.findall(r"^from (progfed\S*) import", text, flags=re.MULTILINE)) <= {"progfed.metrics"}


@pytest.mark.parametrize("name", SIX)
def test_a_program_is_continued_to_the_same_bits_and_exports_what_it_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    program, folders = example(name), [tmp_path / "whole", tmp_path / "interrupted"]
    for folder in folders:
        folder.mkdir()
    program.main(folders[0], rounds=6)
    found = re.findall(r"([\d.]+)", capsys.readouterr().out.replace("F1", ""))
    assert float(found[0]) == float(found[-1])
    monkeypatch.setattr(progfed, "run", interrupted)
    program.main(folders[1], rounds=6)
    whole, continued = ((folder / "run" / "exported.safetensors").read_bytes() for folder in folders)
    assert whole == continued


def interrupted(experiment: progfed.Experiment, out: Path) -> Any:
    """`progfed.run` that was stopped before the model grew, then on one process where the other had several."""
    rounds = train(experiment, out, data=out)
    assert next(rounds)["stage"] < experiment.recipe.schedule[-1].stage
    rounds.close()  # type: ignore[attr-defined]
    return progfed.runs.train.run(experiment, out, workers=1)
