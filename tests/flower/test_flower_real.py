"""The real thing: Flower's simulation, and a federation of three nodes over TLS, give the bits of one machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flower.deployed import alive_with, make_app, outcome, progfed
from progfed.cli import app as commands
from progfed.deploy.federation import Federation
from progfed.deploy.keys import make_node_key
from progfed.deploy.processes import free_port
from progfed.errors import UsageError
from progfed.experiment import run
from progfed.experiments import load


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app") / "tiny"
    make_app(folder)
    return folder


@pytest.fixture(scope="module")
def local(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on this machine alone."""
    out = tmp_path_factory.mktemp("local")
    run(load(str(app / "fedapp" / "experiment.py"))[0], out)
    return out


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("federation")
    try:
        Federation(folder).up(3)
        yield folder
    finally:
        Federation(folder).down()
        assert alive_with(str(folder)) == []


def test_flowers_simulation_gives_the_bits_and_bytes_of_one_machine(app: Path, local: Path, tmp_path: Path) -> None:
    experiment = str(app / "fedapp" / "experiment.py")
    progfed("run", experiment, "--engine", "flower", "--workers", "2", "--out", str(tmp_path))
    assert outcome(tmp_path / "tiny-seed3") == outcome(local)
    assert [r["stage"] for r in outcome(local)[1]] == [1, 2, 2, 2]
    assert alive_with(str(tmp_path)) == []


def test_a_federation_over_tls_gives_the_bits_and_bytes_of_one_machine(
    app: Path, local: Path, federation: Path
) -> None:
    assert len(Federation(federation).running) == 7
    progfed("deploy", "run", str(app), "--dir", str(federation))
    assert outcome(federation / "runs" / "tiny-seed3") == outcome(local)
    said = CliRunner().invoke(commands, ["deploy", "status", "--dir", str(federation), "--json"])
    status = json.loads(said.stdout)
    assert [process["running"] for process in status["processes"]] == [True] * 7
    assert [node["status"] for node in status["nodes"]] == ["online"] * 3
    assert [run["status"] for run in status["runs"]] == ["finished:completed"]


def test_a_node_that_is_not_registered_is_refused(federation: Path, tmp_path: Path) -> None:
    make_node_key(tmp_path / "stranger")
    said = join(
        federation, "--root-certificates", ca(federation), "--auth-supernode-private-key", f"{tmp_path}/stranger"
    )
    assert "Failed to activate SuperNode" in said or "SuperNode is not registered" in said or "2004" in said


def test_a_node_without_tls_cannot_join(federation: Path) -> None:
    assert "SuperNode ID" not in join(federation, "--insecure", "--max-retries", "1", "--max-wait-time", "3")


def test_a_node_that_does_not_know_the_certificate_does_not_join(federation: Path, tmp_path: Path) -> None:
    said = join(federation, "--max-retries", "1", "--max-wait-time", "3")
    assert "SuperNode ID" not in said


def test_a_second_federation_in_the_same_folder_is_refused(federation: Path) -> None:
    with pytest.raises(UsageError, match="is running"):
        Federation(federation).up(1)


def ca(federation: Path) -> str:
    return str(federation / "certificates" / "ca.crt")


def join(federation: Path, *options: str) -> str:
    """What a node says that tries to join, until it gives up."""
    port = next(process.port for process in Federation(federation).running if process.name == "superlink")
    command = [Federation(federation).commands.path("flower-supernode"), "--superlink", f"127.0.0.1:{port}", *options]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--node-config", "partition-id=0 num-partitions=1"]
    try:
        done = subprocess.run(
            [*command, "--isolation", "process"],
            env=Federation(federation).commands.environment(),
            capture_output=True,
            text=True,
            timeout=25,
        )
    except subprocess.TimeoutExpired as still:
        return f"{still.stdout!r} {still.stderr!r}"
    assert done.returncode != 0
    return done.stdout + done.stderr
