"""The documentation is true: its code runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from progfed.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *(ROOT / "docs").glob("*.md")]
)
TUTORIAL = ROOT / "docs" / "tutorial.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def code() -> list[tuple[str, str]]:
    alone = [page for page in PAGES if page != TUTORIAL]
    return [(f"{page.name}:{index}", text) for page in alone for index, text in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("text", [text for _, text in code()], ids=[name for name, _ in code()])
def test_code_in_the_documentation_runs(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "documentation", "exec", dont_inherit=True), {"__name__": "documentation"})


def test_the_tutorial_runs_from_top_to_bottom_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {"__name__": "tutorial"}
    told = re.findall(
        r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", TUTORIAL.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    assert [code for code, _ in told] == blocks(TUTORIAL, "python")
    for code, output in told:
        exec(compile(code, "tutorial", "exec"), session)
        assert shape(capsys.readouterr().out) == shape(output)


def shape(output: str) -> str:
    """An output without its numbers: their last digits differ between processors."""
    return re.sub(r"\d+(\.\d+)?", "#", output)


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


def test_the_site_builds_without_a_warning_and_asks_nobody_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    told = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )
    assert told.returncode == 0, told.stdout + told.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=[\"']?(https?://[^\"'> ]+)", page.read_text())
        assert not loaded, page
