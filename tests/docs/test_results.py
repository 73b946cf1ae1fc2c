"""The tables of docs/results.md are those that the committed records make, and nothing is missing."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from progfed import experiments

ROOT = Path(__file__).parents[2]
RESULTS = runpy.run_path(str(ROOT / "scripts" / "results.py"))
PAGE = (ROOT / "docs" / "results.md").read_text()


def test_making_the_tables_again_changes_nothing() -> None:
    assert RESULTS["filled"](PAGE) == PAGE


def test_a_number_that_no_record_has_is_found() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `restart` |"))
    forged = PAGE.replace(row, row.replace("|", "| 99.99", 2))
    assert RESULTS["filled"](forged) == PAGE != forged


@pytest.mark.parametrize("name", RESULTS["SECTIONS"])
def test_every_section_has_its_runs_and_at_least_two_seeds(name: str) -> None:
    section = RESULTS["SECTIONS"][name]
    known = {run.run for run in experiments.load(section.experiment)}
    known |= {f"{run}-equal-bytes" for run in known}  # made by `--compare`
    table = PAGE.split(f"<!-- table {name} -->")[1].split("<!-- end -->")[0]
    if not (ROOT / "docs" / "results" / f"{name}.csv").exists():
        assert table.strip() == ""  # nobody has trained it yet: a number here would have no record
        return
    assert re.findall(r"^\| `(.+?)` \|", table, flags=re.MULTILINE) == list(section.runs)
    assert set(section.runs) <= known
    assert all(", " in seeds for seeds in re.findall(r"^\| `.+?` \|.+?\| (.+?) \|", table, flags=re.MULTILINE))


def test_every_figure_of_the_folder_is_shown() -> None:
    figures = {path.name for path in (ROOT / "docs" / "results").iterdir() if path.suffix in (".svg", ".png")}
    assert figures == set(re.findall(r"!\[.*?\]\(results/([^)]+)\)", PAGE))
