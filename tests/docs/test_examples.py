"""The programs in examples/ run, at a reduced size, and say what they promise."""

from __future__ import annotations

import re
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

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


def test_a_regression_reports_the_error_that_plain_pytorch_finds(capsys: pytest.CaptureFixture[str]) -> None:
    example("regression").main(6)
    found, _, again = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert float(found) == pytest.approx(float(again), abs=2e-3)


def test_several_labels_report_the_auc_that_plain_pytorch_finds(capsys: pytest.CaptureFixture[str]) -> None:
    example("multi_label").main(6)
    found, _, again = numbers(capsys.readouterr().out, "%")
    assert found == pytest.approx(again, abs=0.02)
    assert found > 60


@pytest.mark.parametrize("name", ["image_folder", "text_classifier"])
def test_a_program_of_thirty_lines_exports_what_it_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lines = (FOLDER / f"{name}.py").read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith(("from ", "import "))]) <= 30
    example(name).main(tmp_path, rounds=4)
    reported, exported = numbers(capsys.readouterr().out, "%")
    assert reported == exported
    model = tmp_path / "run" / "model.safetensors"
    whole = model.read_bytes()
    (tmp_path / "run").rename(tmp_path / "first")
    example(name).main(tmp_path, rounds=4)
    assert model.read_bytes() == whole
