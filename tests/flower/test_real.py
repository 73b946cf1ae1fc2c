"""The real thing: Flower's simulation, and a federation of three nodes over TLS, give the bits of one machine."""

from __future__ import annotations

import json
import shutil
import ssl
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.runtime import RuntimeHttpClient
from typer.testing import CliRunner

from flower.deployed import alive_with, make_app, outcome, progfed
from flower.lying import lying
from progfed.cli import app as commands
from progfed.errors import UsageError
from progfed.experiments import load
from progfed.flower.federation.federation import Federation
from progfed.flower.federation.keys import make_node_key
from progfed.flower.federation.processes import free_port, stop
from progfed.runs.train import run
from tiny import tiny_data

Client = TypeVar("Client", ControlHttpClient, RuntimeHttpClient)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that server and nodes must have been told of."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "examples").touch()
    return folder


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app") / "tiny"
    experiment = make_app(folder)
    text = experiment.read_text()
    experiment.write_text(text.replace("    population =", '    (root / "examples").read_bytes()\n    population ='))
    return folder


@pytest.fixture(scope="module")
def local(app: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on this machine alone."""
    out = tmp_path_factory.mktemp("local")
    run(load(str(app / "fedapp" / "experiment.py"))[0], out, data=data)
    return out


@pytest.fixture(scope="module")
def federation(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("federation")
    try:
        Federation(folder).up(3, data=data)
        yield folder
    finally:
        Federation(folder).down()
        assert alive_with(str(folder)) == []


def test_flowers_simulation_gives_the_bits_and_bytes_of_one_machine(
    app: Path, data: Path, local: Path, tmp_path: Path
) -> None:
    command = ["run", str(app / "fedapp" / "experiment.py"), "--data", str(data), "--out", str(tmp_path)]
    progfed(*command, "--engine", "flower", "--workers", "2")
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


@pytest.mark.parametrize(
    ("settings", "package", "said"),
    [
        (["--set", "rounds=3"], "fedapp", "has no setting 'rounds': it has out, data, deadline, start"),
        ([], "elsewhere", "cannot be started: `flwr run` says: No module named 'fedapp'"),
    ],
    ids=["a setting that the app does not have", "an app without its package"],
)
def test_an_app_that_cannot_be_started_is_one_sentence_though_another_run_was_complete(
    app: Path, federation: Path, tmp_path: Path, settings: list[str], package: str, said: str
) -> None:
    shutil.copytree(app, tmp_path / "app")
    (tmp_path / "app" / "fedapp").rename(tmp_path / "app" / package)
    done = progfed("deploy", "run", str(tmp_path / "app"), "--dir", str(federation), *settings, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert said in done.stderr


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


def test_secrets_and_the_database_are_their_owners_only(federation: Path) -> None:
    for name in ("keys/operator.secret", "keys/node-0", "certificates/server.key", "flwr/credentials.yaml", "state.db"):
        assert stat.S_IMODE((federation / name).stat().st_mode) == 0o600, name


def test_the_operator_registers_lists_and_reads_logs(federation: Path, tmp_path: Path) -> None:
    flwr = Federation(federation).commands
    make_node_key(tmp_path / "new")
    flwr.flwr("supernode", "register", str(tmp_path / "new.pub"), "progfed")
    nodes = flwr.listed("supernode", "list", "progfed")["nodes"]
    assert sorted(node["status"] for node in nodes) == ["online"] * 3 + ["registered"]
    (run,) = flwr.listed("list", "progfed")["runs"]
    assert "round 4, stage 2" in flwr.flwr("log", run["run-id"], "progfed", "--show")


def test_whoever_has_the_certificate_alone_cannot_use_flwr(app: Path, federation: Path, tmp_path: Path) -> None:
    settings = Federation(federation).path / "flwr" / "config.toml"
    (tmp_path / "config.toml").write_text(settings.read_text())
    stranger = replace(Federation(federation).commands, home=tmp_path)
    done = subprocess.run(
        [stranger.path("flwr"), "run", str(app), "progfed"], env=stranger.environment(), capture_output=True, text=True
    )
    assert "Only the operator" in done.stderr
    assert [run["status"] for run in Federation(federation).commands.listed("list", "progfed")["runs"]] == [
        "finished:completed"
    ]


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Bearer", "Basic c2VjcmV0"], ids=repr)
def test_no_way_to_control_a_federation_is_open_to_whoever_has_the_certificate_alone(
    federation: Path, token: str
) -> None:
    trusted = ssl.create_default_context(cafile=ca(federation))
    ways = sorted(path for _, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/control/"))
    assert "/v1/control/start-run" in ways
    with httpx.Client(base_url=f"https://{address(federation)}", verify=trusted) as stranger:
        headers = {"content-type": "application/x-protobuf"} | ({"authorization": token} if token else {})
        for way in [*ways, "/docs", "/openapi.json", "/v1/control/", "/v1/", "/"]:
            assert stranger.post(way, headers=headers).status_code == 403, way
            assert stranger.get(way, headers=headers).status_code == 403, way


def test_the_certificate_alone_neither_registers_nor_unregisters_nor_lists_nor_reads_nor_stops(
    federation: Path, tmp_path: Path
) -> None:
    (run,) = Federation(federation).commands.listed("list", "progfed")["runs"]
    node = Federation(federation).commands.listed("supernode", "list", "progfed")["nodes"][0]
    make_node_key(tmp_path / "stranger")
    key = (tmp_path / "stranger.pub").read_bytes()
    with connected(ControlHttpClient, federation) as stranger:
        for attempt in (
            lambda: stranger.RegisterNode(RegisterNodeRequest(public_key=key)),
            lambda: stranger.UnregisterNode(UnregisterNodeRequest(node_id=int(node["node-id"]))),
            lambda: stranger.ListNodes(ListNodesRequest()),
            lambda: stranger.ListRuns(ListRunsRequest()),
            lambda: list(stranger.StreamLogs(StreamLogsRequest(run_id=int(run["run-id"])))),
            lambda: stranger.StopRun(StopRunRequest(run_id=int(run["run-id"]))),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="403 Forbidden"):
                attempt()


def test_the_certificate_alone_is_not_given_the_task_of_a_server_app(federation: Path) -> None:
    wanted = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
    with connected(RuntimeHttpClient, federation) as stranger, pytest.raises(httpx.HTTPStatusError, match="401"):
        stranger.AcquireTask(wanted)


def test_nodes_whose_replies_never_come_or_are_far_too_long_stall_no_round_and_end_no_run(
    data: Path, federation: Path, tmp_path: Path
) -> None:
    there = Federation(federation)
    make_app(tmp_path / "app", rounds=2, cohort=6)
    make_node_key(tmp_path / "key")
    there.commands.flwr("supernode", "register", str(tmp_path / "key.pub"), "progfed")
    replaced = [process for process in there.processes if process.name.startswith("node-2")]
    stop(replaced)  # asked to end, it signs off, and another can come with its key
    sizes = tiny_data(clients=6).sizes
    own = there.path / "keys" / "node-2"
    with (
        lying(address(federation), ca(federation), own, {2: sizes[2], 5: sizes[5]}, endless=12_000_000) as tasks,
        lying(address(federation), ca(federation), tmp_path / "key", {}) as questions,
    ):
        out = str(tmp_path / "runs")
        settings = ["--set", f"out={out}", "--set", "deadline=15"]
        progfed("deploy", "run", str(tmp_path / "app"), "--dir", str(federation), *settings)
    records = outcome(tmp_path / "runs" / "tiny-seed3")[1]
    assert [(record["clients"], record["rejected"]) for record in records] == [(4, {"length": 1, "missing": 1})] * len(
        records
    )
    assert tasks.count("train.progfed") == 2 * len(records)
    assert set(questions) == {"query.progfed"}


def connected(kind: type[Client], federation: Path) -> Client:
    """A client as `flwr` has it, that knows the certificate and nothing else."""
    versions = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    certificate = Path(ca(federation)).read_bytes()
    return kind.from_server_address(address(federation), False, certificate, [versions])


def address(federation: Path) -> str:
    port = next(process.port for process in Federation(federation).running if process.name == "superlink")
    return f"127.0.0.1:{port}"


def ca(federation: Path) -> str:
    return str(federation / "certificates" / "ca.crt")


def join(federation: Path, *options: str) -> str:
    """What a node says that tries to join, until it gives up."""
    command = [Federation(federation).commands.path("flower-supernode"), "--superlink", address(federation), *options]
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
