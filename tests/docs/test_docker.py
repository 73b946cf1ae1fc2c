"""The Dockerfile, as far as it can be checked without a daemon: it agrees with the Makefile and with the package.

Its commands follow the Makefile; what it copies is all that the package is built from.
"""

from __future__ import annotations

import fnmatch
import json
import re
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from progfed.cli import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def steps() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile in order, with their arguments."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if line and not line.startswith("#")]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in lines]


def of(kind: str) -> list[str]:
    return [argument for name, argument in steps() if name == kind]


def copied() -> list[str]:
    return [source for argument in of("COPY") for source in argument.split()[:-1]]


def test_it_begins_with_a_python_that_the_package_supports() -> None:
    (image,) = of("FROM")
    version = re.fullmatch(r"python:(3\.\d+)-slim", image)
    assert version is not None
    assert PROJECT["project"]["requires-python"] == f">={version[1]}"


def test_it_copies_all_that_the_package_is_built_from() -> None:
    hatch = PROJECT["tool"]["hatch"]
    needed = [
        "pyproject.toml",
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        hatch["version"]["path"],
        *hatch["build"]["targets"]["wheel"]["packages"],
    ]
    for path in needed:
        assert any(path == source or path.startswith(f"{source}/") for source in copied()), path
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for source in copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored  # everything else is left out of the context
    assert ignored[0] == "*"
    assert not any(fnmatch.fnmatch(".venv", line) for line in ignored[1:])


def test_it_installs_as_the_makefile_does_and_before_a_step_that_needs_it() -> None:
    runs = of("RUN")
    makefile = (ROOT / "Makefile").read_text().replace("$$(", "$(").replace("$(BIN)/pip", "pip").replace("--quiet ", "")
    torch, package = (step.replace("--no-cache-dir ", "") for step in runs[:2])
    assert torch in makefile
    assert package.replace("install .", "install -e .") in makefile
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    order = [argument for _, argument in steps()]
    assert order.index("constraints.txt ./") < order.index(runs[0]) < order.index("src ./src") < order.index(runs[1])


def test_it_starts_the_demo() -> None:
    entry, command = json.loads(of("ENTRYPOINT")[0]), json.loads(of("CMD")[0])
    assert entry[0] in PROJECT["project"]["scripts"]
    assert command == ["demo"]
    assert CliRunner().invoke(app, [*entry[1:], *command, "--help"]).exit_code == 0


def test_the_documented_commands_use_the_folder_that_it_keeps_runs_in() -> None:
    (kept,) = json.loads(of("VOLUME")[0])
    (work,) = of("WORKDIR")
    assert kept == f"{work}/runs"
    told = (ROOT / "docs" / "quickstart.md").read_text()
    assert "docker build -t progfed ." in told
    assert f'-v "$PWD/runs:{kept}" progfed' in told
    assert any(step.startswith("mkdir runs && chmod") for step in of("RUN"))
