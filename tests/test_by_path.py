"""Import paths: a user's own values by where they are, and one sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from progfed.by_path import by_path, is_path
from progfed.cli.settings import override
from progfed.codec import Chain, Sparsify, codec
from progfed.errors import UsageError
from progfed.recipe.rate import Constant
from progfed.schedule import end_to_end
from tiny import tiny_experiment

OWN = """
from dataclasses import dataclass
from progfed import fedavg
from progfed.codec import Quantize
from progfed.recipe.aggregate import Median
from progfed.recipe.growth import Plateau
from progfed.recipe.rate import Constant
from progfed.schedule import end_to_end

class Levels(Quantize):
    pass

four = Levels(4)
half = fedavg(0.5)
number = 3

def whole(rounds):
    return end_to_end(rounds, stages=3)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_path_is_a_value_a_class_made_without_arguments_or_a_call_with_literals() -> None:
    assert by_path("own_parts:number") == 3
    assert by_path("own_parts:Median") == by_path("own_parts:Median()")
    assert by_path("own_parts:Levels(4)") == by_path("own_parts:four")
    assert by_path("own_parts:Plateau(window=2, tolerance=0.5)").window == 2


@pytest.mark.parametrize("text", ["LQ-8", "mean", "a:", ":b", "C:\\data", 3, "a b:c"])
def test_what_is_no_path_is_told_apart(text: object) -> None:
    assert not is_path(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no_such_module:x", "module no_such_module cannot be imported"),
        ("own_parts:nothing", "module own_parts has no nothing"),
        ("own_parts:Levels(99)", "99"),
        ("own_parts:Levels(2, 3, 4)", "cannot be made"),
        ("own_parts:Levels(open('x'))", "cannot be read"),
        ("own_parts:Levels(**{})", "cannot be read"),
        ("not a path", "is no import path"),
    ],
)
def test_mistakes_are_one_sentence(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        by_path(text)


def test_a_module_in_the_current_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text("value = 7\n")
    monkeypatch.setattr("sys.path", [place for place in __import__("sys").path if place != str(tmp_path)])
    monkeypatch.chdir(tmp_path)
    assert by_path("beside_me:value") == 7


def test_a_step_of_ones_own_stands_alone_and_in_a_chain() -> None:
    assert codec("own_parts:Levels(4)") == by_path("own_parts:four")
    chained = codec("own_parts:Levels(4)+sp-25")
    assert chained == Chain((by_path("own_parts:four"), Sparsify(25)))
    with pytest.raises(UsageError, match="is none"):
        codec("SP-25+own_parts:number")


def test_every_setting_with_a_name_takes_a_path_from_the_command_line() -> None:
    changed = tiny_experiment()
    for setting in (
        "up=own_parts:Levels(4)+SP-50",
        "server=own_parts:half",
        "aggregate=own_parts:Median",
        "growth=own_parts:Plateau(window=1)",
        "schedule=own_parts:whole(4)",
        "recipe.rate=own_parts:Constant(0.25)",
    ):
        changed = override(changed, setting)
    recipe = changed.recipe
    assert recipe.server == by_path("own_parts:half")
    assert recipe.schedule == end_to_end(4, stages=3)
    assert recipe.rate == Constant(0.25)
    assert recipe.up.name.endswith("+SP-50")
    assert recipe.growth == by_path("own_parts:Plateau(window=1)")


@pytest.mark.parametrize("name", ["server", "aggregate", "growth", "up", "schedule", "recipe.rate"])
def test_a_value_that_does_not_fit_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        override(tiny_experiment(), f"{name}=own_parts:number" if name != "recipe.rate" else f"{name}=own_parts:OWN")
