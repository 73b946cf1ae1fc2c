"""`progfed inspect`: what it shows is what plan and phase_memory say, and every mistake is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from progfed import experiments
from progfed.cli import app, main
from progfed.cli.inspect import HEIGHT, WIDTH, picture
from progfed.costs.memory import phase_memory
from progfed.models.convnet import convnet_mnist
from progfed.runs.overview import Span, overview
from progfed.runs.plan import plans
from progfed.schedule import Phase
from tiny import tiny_experiment

FILE = """
import torch
from torch import nn
import progfed

net = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 16), nn.ReLU(),
    nn.Linear(16, 3),
)
image = torch.zeros(2, 1, 8, 8)

def made():
    return net

def example():
    return image

def needs_one(argument):
    return net

grown = progfed.split(net, stages=2, example=image)
number = 7


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_layer_with_a_name_that_is_long_enough_to_be_cut = nn.Linear(4, 5)
        self.another_layer_with_a_name_that_is_long_enough_to_be_cut = nn.Linear(5, 3)

    def forward(self, numbers):
        hidden = self.a_layer_with_a_name_that_is_long_enough_to_be_cut(numbers)
        return self.another_layer_with_a_name_that_is_long_enough_to_be_cut(hidden.relu())


by_name = progfed.split(Named(), stages=1, example={"numbers": torch.zeros(2, 4)})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


def shown(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["inspect", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)
    return dict(found)


@pytest.mark.parametrize("name", ["net", "made"])
@pytest.mark.parametrize("option", [("--input", "1x8x8"), ("--example", "image"), ("--example", "example")])
def test_a_model_is_split_into_stages_that_grow_to_all_of_it(file: Path, name: str, option: tuple[str, str]) -> None:
    found = shown(f"{file}:{name}", *option, "--stages", "3", "--rounds", "60")
    parameters = [stage["parameters"] for stage in found["stages"]]
    assert [stage["stage"] for stage in found["stages"]] == [1, 2, 3]
    assert parameters == sorted(parameters)
    assert parameters[-1] == (9 * 4 + 4) + (9 * 4 * 8 + 8) + (128 * 16 + 16) + (16 * 3 + 3)
    assert [(span["stage"], span["rounds"]) for span in found["schedule"]] == [
        (1, 10),
        (2, 2),
        (2, 8),
        (3, 2),
        (3, 38),
    ]
    assert found["relative"]["bytes"] < 1
    assert 1 <= found["relative"]["memory"] < 1.2  # the head of stage 2 beside that of stage 3
    assert found["stages"][-1]["memory_relative"] == 1


def test_cuts_say_how_many_stages_there_are(file: Path) -> None:
    found = shown(f"{file}:net", "--input", "1x8x8", "--cuts", "1")
    assert [stage["stage"] for stage in found["stages"]] == [1, 2]


def test_a_progressive_model_is_shown_as_it_is(file: Path) -> None:
    found = shown(f"{file}:grown")
    assert [stage["stage"] for stage in found["stages"]] == [1, 2]
    assert found["rounds"] == 100


def test_batch_and_momentum_count(file: Path) -> None:
    arguments = (f"{file}:grown", "--batch")
    small, large = shown(*arguments, "5"), shown(*arguments, "10", "--momentum", "0.9")
    for before, after in zip(small["stages"], large["stages"], strict=True):
        assert after["memory"]["activations"] > before["memory"]["activations"]
        assert (before["memory"]["optimizer"], after["memory"]["optimizer"]) == (0, after["memory"]["weights"])


def test_an_experiment_is_shown_with_its_own_schedule_and_the_saving_that_plan_predicts() -> None:
    found = shown("demo", "--run", "progressive")
    family = experiments.load("demo")
    (experiment,) = experiments.named(family, ["progressive"])
    (planned,) = plans([experiment], family)
    assert found["relative"] == planned["relative"]
    model, local = convnet_mnist(10, heads="grid"), experiment.recipe.local
    for stage in found["stages"]:
        assert stage["memory_bytes"] == phase_memory(model, Phase(stage["stage"], 1), local).peak
    assert found["stages"][0]["adds"] == ["0 Conv2d", "1 ReLU"]
    assert found["stages"][2]["head"] == ["Linear"]


def test_what_people_see_has_the_stages_the_picture_and_the_saving(file: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", f"{file}:net", "--input", "1x8x8", "--stages", "2"])
    assert result.exit_code == 0
    for words in ("peak memory", "bytes of a client's round", "of end-to-end training", "in stage 1"):
        assert words in result.stdout


def test_the_picture_is_as_high_as_the_largest_round_and_steps_where_the_model_grows() -> None:
    lines = picture((Span(1, 30, False, 250), Span(2, 30, False, 1000)))
    bars = [line[12:] for line in lines[:HEIGHT]]
    filled = [sum(" ▁▂▃▄▅▆▇█".index(row[place]) for row in bars) for place in range(WIDTH)]
    assert filled == [2 * HEIGHT] * (WIDTH // 2) + [8 * HEIGHT] * (WIDTH // 2)
    assert lines[0].startswith("    1.0 kB |")
    assert lines[-1].split() == ["1", "31", "60"]


def test_a_schedule_with_many_phases_still_fits_the_picture() -> None:
    lines = picture(
        tuple(Span(1 + number % 3, 1, False, 100 * (1 + number % 3)) for number in range(500)), eighths=False
    )
    assert {len(line) for line in lines} == {12 + WIDTH}
    assert all(line.isascii() for line in lines)


def test_overview_looks_at_no_data() -> None:
    def refuse(folder: Path) -> Any:
        raise AssertionError("data were asked for")

    assert overview(tiny_experiment(data=refuse)).stages[-1].stage == 3


CASES = [
    (["nosuch.py:net"], "there is no file nosuch.py"),
    (["FILE:nett", "--input", "1x8x8"], "the file has no 'nett'; did you mean net"),
    (["FILE:net", "--example", "imag"], "the file has no 'imag'; did you mean image"),
    (["FILE:number"], "is of type int: name a Progressive, an nn.Module"),
    (["FILE:needs_one", "--input", "1x8x8"], "cannot be called without arguments"),
    (["FILE:net"], "give --input 3x32x32, or --example NAME"),
    (["FILE:net", "--input", "1,8,8"], "such as 3x32x32, not '1,8,8'"),
    (["FILE:net", "--input", "1x8x8", "--dtype", "float33"], "'float33' is no type of tensors"),
    (["FILE:net", "--input", "3x8x8"], "layer '0' (Conv2d) refused an input of shape 1x3x8x8"),
    (["FILE:net", "--input", "1x9x9"], "layer '5' (Linear) refused an input of shape 1x200"),
    (["FILE:net", "--input", "1x8x8", "--stages", "50"], "stages"),
    (["FILE:grown", "--stages", "3"], "is progressive already, with 2 stages"),
    (["FILE:grown", "--rounds", "1"], "1 rounds are too few for 2 stages"),
    (["FILE:grown", "--batch", "0"], "a batch of 1"),
    (["nosuch"], "there is no experiment 'nosuch'"),
    (["demo", "--stages", "2"], "demo is not FILE:MODEL"),
]


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_a_mistake_is_one_line(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    filled = [argument.replace("FILE", str(file)) for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["progfed", "inspect", *filled])
    with pytest.raises(SystemExit) as stopped:
        main()
    errors = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 2
    assert len(errors) == 1
    assert message in errors[0]


def test_a_progressive_model_whose_inputs_have_names_is_shown(file: Path) -> None:
    found = shown(f"{file}:by_name")
    assert [stage["parameters"] for stage in found["stages"]] == [4 * 5 + 5 + 5 * 3 + 3]


def test_names_are_complete_where_there_is_no_terminal_and_folded_where_there_is_little_room(file: Path) -> None:
    command, name = (
        [sys.executable, "-m", "progfed", "inspect", f"{file}:by_name"],
        "a_layer_with_a_name_that_is_long_enough",
    )
    plain = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    for environment, whole in ((plain, True), (plain | {"COLUMNS": "80"}, False)):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert (name in done.stdout) == whole
        assert "…" not in done.stdout
