"""The documentation is true: its code runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from progfed.cli import app

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code() -> list[tuple[str, str]]:
    return [(f"{page.name}:{index}", text) for page in PAGES for index, text in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("text", [text for _, text in code()], ids=[name for name, _ in code()])
def test_code_in_the_documentation_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "documentation", "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_documentation_exist(page: Path) -> None:
    named = set(re.findall(r"(?:^|`)progfed ([a-z]+)", page.read_text(), flags=re.MULTILINE))
    for command in named:
        assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command


def test_no_machine_path_is_written_down() -> None:
    # a leading slash of these folders, not the names themselves
    pattern = re.compile(r"(?<![\w.])/(work|root|home)/")
    for page in PAGES:
        assert not pattern.search(page.read_text()), page
