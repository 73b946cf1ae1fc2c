"""The notebook in examples/ is a valid one, and runs from top to bottom in an interpreter of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"

RUN = """
import sys

def run(cells):
    space = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), space)

run(sys.stdin.read().split("\\0"))
"""


def cells(kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook()["cells"] if cell["cell_type"] == kind]


def notebook() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NOTEBOOK.read_text())
    return found


def test_it_has_the_form_of_a_notebook_and_holds_no_output_that_could_be_stale() -> None:
    found = notebook()
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    names = [cell["id"] for cell in found["cells"]]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in names)
    for cell in found["cells"]:
        assert set(cell) - {"execution_count", "outputs"} == {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
        else:
            assert cell["cell_type"] == "markdown"


def test_it_runs_from_top_to_bottom(tmp_path: Path) -> None:
    shorter = [re.sub(r"^rounds = \d+$", "rounds = 6", cell, flags=re.MULTILINE) for cell in cells("code")]
    assert shorter != cells("code")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input="\0".join(shorter),
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    whole, growing = (float(size) for size in re.findall(r"([\d.]+) MB", done.stdout))
    assert growing < whole
    reported, exported = re.findall(r"(?:reported|PyTorch) ([\d.]+) %", done.stdout)
    assert reported == exported
