"""Keys that fit, processes that end, and an app that is written whole: what a deployment is made of."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import ArrayRecord, RecordDict
from flwr.cli.constant import ACCESS_TOKEN_STORE_KEY
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.credential_store.file_credential_store import FileCredentialStore
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.grid import http_grid
from typer.testing import CliRunner

from progfed.cli import app
from progfed.data.own import OwnData
from progfed.errors import DataError, ProgfedError, StorageError, UsageError
from progfed.flower.apps import SIZES
from progfed.flower.federation import keys
from progfed.flower.federation.federation import Federation
from progfed.flower.federation.keys import make_certificates, make_node_key, make_operator_secret, remember_operator
from progfed.flower.federation.processes import Process, family, free_port, read, start, start_time, stop, write
from progfed.flower.superlink import LARGEST, Gate, Receive, Scope, Send, read_secret
from progfed.flower.supernode import AGAIN, AT_LAST, bound_content, hasten_content, limit_content
from progfed.flower.wire import opaque
from progfed.flower.worker import _forget
from progfed.population import Examples
from progfed.runs.identity import describe

COMMANDS = CliRunner()


def handshake(folder: Path, trusted: Path, name: str) -> None:
    """Connect to a TLS server that has the certificate of `folder`, trusting that of `trusted`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    client = ssl.create_default_context(cafile=str(trusted / "ca.crt"))
    here, there = socket.socketpair()

    def answer() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as stream:
                stream.sendall(b"hello")
        except OSError:
            there.close()

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=name) as stream:
            assert stream.recv(5) == b"hello"
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "hospital.example"])
def test_a_certificate_is_valid_for_its_names_and_addresses(tmp_path: Path, name: str) -> None:
    make_certificates(tmp_path, ["127.0.0.1", "localhost", "hospital.example"])
    handshake(tmp_path, tmp_path, name)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, tmp_path, "elsewhere.example")


def test_a_certificate_of_another_federation_is_not_trusted(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        make_certificates(tmp_path / folder, ["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path / "one", tmp_path / "two", "127.0.0.1")


def test_private_keys_are_their_owners_only_and_the_authoritys_is_not_kept(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"])
    make_node_key(tmp_path / "node")
    secret = [path.name for path in tmp_path.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert sorted(secret) == ["node", "server.key"]
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in secret} == {0o600}
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_nodes_public_key_is_that_of_its_private_key(tmp_path: Path) -> None:
    make_node_key(tmp_path / "node")
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert load_ssh_public_key((tmp_path / "node.pub").read_bytes()) == private.public_key()


SECRET = b"s" * 43


def passes(path: str, *, client: str = "192.0.2.9", token: bytes = b"", length: bytes | None = b"5") -> bool:
    """Whether a request from another machine gets through the gate to the SuperLink."""
    reached = []

    async def superlink(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["path"])

    async def nothing(message: Any = None) -> Any:
        return {}

    headers = [(b"authorization", token)] if token else []
    headers += [(b"content-length", length)] if length is not None else [(b"transfer-encoding", b"chunked")]
    scope = {"type": "http", "path": path, "headers": headers, "client": (client, 5), "server": ("192.0.2.7", 8000)}
    asyncio.run(Gate(superlink, SECRET)(scope, nothing, nothing))
    return reached == [path]


def test_the_gate_lets_everybody_to_the_part_of_the_superlink_that_is_theirs() -> None:
    assert passes("/v1/fleet/activate-node")
    assert passes("/v1/control/start-run", token=b"Bearer " + SECRET)
    for client in ("127.0.0.1", "::1", "192.0.2.7"):
        assert passes("/v1/runtime/acquire-task", client=client)


def test_the_gate_lets_nobody_to_another_part() -> None:
    for token in (b"", b"Bearer", b"Bearer " + SECRET[1:], SECRET, b"\xff" * 50):
        assert not passes("/v1/control/start-run", token=token)
        assert not passes("/v1/control/get-login-details", client="127.0.0.1", token=token)
    for client in ("192.0.2.9", "2001:db8::1", "", "no address"):
        assert not passes("/v1/runtime/acquire-task", client=client)
    for path in ("/docs", "/", "//v1/fleet/x", "/v1/fleet", "/V1/control/start-run"):
        assert not passes(path, token=b"Bearer " + SECRET)


def test_a_nodes_request_must_say_its_length_and_fit_into_memory() -> None:
    assert passes("/v1/fleet/push-object", length=b"%d" % LARGEST)
    for length in (None, b"%d" % (LARGEST + 1), b"-5", b"1e3", b"9" * 5000, b""):
        assert not passes("/v1/fleet/push-object", length=length)
    assert LARGEST > FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # larger content comes in pieces
    assert passes("/v1/control/start-run", token=b"Bearer " + SECRET, length=b"%d" % (LARGEST + 1))


@pytest.fixture
def _limits_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `limit_content` changes in Flower is as before when the test is over."""
    monkeypatch.setattr(http_grid, "pull_objects", http_grid.pull_objects)
    classes = "inflatable_class_registry"
    monkeypatch.setattr(inflatable_utils, classes, dict(getattr(inflatable_utils, classes)))


@pytest.mark.usefixtures("_limits_put_back")
def test_a_reply_that_is_longer_than_any_update_is_not_fetched_to_its_end() -> None:
    limit_content(1000)
    fetched: list[str] = []

    def piece(name: str) -> bytes:
        fetched.append(name)
        return bytes(200)

    names = [f"{number:064d}" for number in range(500)]
    assert http_grid.pull_objects(names[:3], piece, max_time=1) == dict.fromkeys(names[:3], bytes(200))
    fetched.clear()
    with pytest.raises(OverflowError, match="a reply of more than the 1,000 bytes"):
        http_grid.pull_objects(names, piece, max_time=1)
    assert len(fetched) < 20


@pytest.mark.usefixtures("_limits_put_back")
def test_a_reply_that_names_one_piece_again_and_again_is_not_put_together() -> None:
    limit_content(20_000_000)
    for length in (20_000_000, 20_000_001):
        sent = RecordDict({"a": ArrayRecord({"b": opaque(bytes(length))})})
        content = {name: part.deflate() for name, part in get_all_nested_objects(sent).items()}
        assert sum(map(len, content.values())) < 11_000_000
        with nullcontext() if length == 20_000_000 else pytest.raises(OverflowError, match="20,000,000 bytes"):
            found = inflatable_utils.inflate_object_from_contents(sent.object_id, content)
            assert found["a"]["b"].data == bytes(length)  # type: ignore[index]


def test_a_secret_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    make_operator_secret(tmp_path / "secret")
    assert len(read_secret(tmp_path / "secret")) == 43
    (tmp_path / "secret").chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        read_secret(tmp_path / "secret")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "secret").write_text("password")
    with pytest.raises(ValueError, match="at least 32"):
        read_secret(tmp_path / "secret")
    with pytest.raises(ValueError, match="No such file"):
        read_secret(tmp_path / "none")


def test_the_operators_secret_is_its_owners_only_and_kept_beside_those_of_other_federations(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_operator_secret(tmp_path / name)
        remember_operator(tmp_path / "flwr", f"{name}.example:8000", tmp_path / name)
    kept = tmp_path / "flwr" / "credentials.yaml"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "one", kept)} == {0o600}
    store = FileCredentialStore(kept)
    for name in ("one", "two"):
        assert store.get(ACCESS_TOKEN_STORE_KEY % f"{name}.example:8000") == (tmp_path / name).read_bytes()


def test_keys_are_made_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    for line in (f"certificates {tmp_path} a.example", f"node {tmp_path}/node", f"operator {tmp_path}/secret"):
        monkeypatch.setattr(sys, "argv", ["keys", *line.split()])
        keys.main()
    monkeypatch.setattr(sys, "argv", ["keys", "login", "a.example:8000", f"{tmp_path}/secret"])
    keys.main()
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"ca.crt", "server.pem", "server.key", "node", "node.pub", "secret", "flwr"}
    handshake(tmp_path, tmp_path, "a.example")
    handshake(tmp_path, tmp_path, "127.0.0.1")  # there its own server apps reach the SuperLink


def parent(folder: Path) -> Process:
    """A process with a child in a session of its own that does not listen to SIGTERM."""
    child = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(99)"
    )
    own = f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    code = f"import subprocess, sys, time; {own}; time.sleep(99)"
    return start("one", [sys.executable, "-c", code], log=folder / "log", environment=os.environ, cwd=folder)


def wait_until(holds: object) -> None:
    end = time.monotonic() + 20
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_process_is_ended_with_its_children_even_with_one_that_does_not_listen(tmp_path: Path) -> None:
    process = parent(tmp_path)
    wait_until(lambda: "here" in (tmp_path / "log").read_text())
    assert process.running
    assert len(family([process])) == 2
    stop([process], patience=0.3)
    assert family([process]) == []
    assert not process.running


def test_children_are_ended_when_their_parent_was_killed_before(tmp_path: Path) -> None:
    process = parent(tmp_path)
    wait_until(lambda: "here" in (tmp_path / "log").read_text())
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not process.running)
    stop([process], patience=0.3)
    assert family([process]) == []


def test_a_number_that_was_given_to_another_process_is_left_alone() -> None:
    other = Process("other", os.getpid(), "1", "no such mark")
    assert start_time(os.getpid())
    assert not other.running
    stop([other], patience=0.1)


def test_processes_are_remembered_as_they_were(tmp_path: Path) -> None:
    processes = [Process("a", 1, "12", "m", 80), Process("b", 2, "13", "n")]
    write(tmp_path / "processes.json", processes)
    assert read(tmp_path / "processes.json") == processes
    assert read(tmp_path / "none.json") == []
    (tmp_path / "processes.json").write_text("[{}]")
    with pytest.raises(StorageError, match="by hand"):
        read(tmp_path / "processes.json")


def test_a_federation_that_is_not_there_says_so_and_has_nothing_to_end(tmp_path: Path) -> None:
    assert Federation(tmp_path / "none").down() == 0
    said = COMMANDS.invoke(app, ["deploy", "status", "--dir", str(tmp_path / "none")])
    assert "nothing runs" in said.output
    failed = COMMANDS.invoke(app, ["deploy", "run", str(tmp_path), "--dir", str(tmp_path / "none")])
    assert isinstance(failed.exception, UsageError)
    assert "deploy up" in str(failed.exception)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="in use"):
        Federation(tmp_path).up(1, port=taken.getsockname()[1])
    assert free_port() > 0


def test_an_app_is_written_into_a_new_folder_only(tmp_path: Path) -> None:
    assert COMMANDS.invoke(app, ["init", str(tmp_path / "My App")]).exit_code == 0
    written = {str(path.relative_to(tmp_path / "My App")) for path in (tmp_path / "My App").rglob("*.*")}
    assert {"pyproject.toml", "README.md", "fedapp/experiment.py", "fedapp/client.py", "fedapp/server.py"} <= written
    assert 'name = "my-app"' in (tmp_path / "My App" / "pyproject.toml").read_text()
    again = COMMANDS.invoke(app, ["init", str(tmp_path / "My App")])
    assert isinstance(again.exception, ProgfedError)
    assert "not empty" in str(again.exception)


def own_data() -> OwnData:
    import torch

    def load(folder: Path, client: int) -> Examples:
        if not (folder / f"{client}").exists():
            raise DataError(f"client {client} is not on this machine")
        return Examples(torch.zeros(client + 1, 2), torch.zeros(client + 1, dtype=torch.long))

    return OwnData(clients=3, load=load, test=lambda folder: Examples(torch.zeros(1, 2), torch.zeros(1)), classes=2)


def test_own_data_are_counted_only_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    population = own_data()(tmp_path)
    assert population.clients == 3
    assert population.client(1).number == 2
    with pytest.raises(DataError, match="client 2 is not on this machine"):
        population.client(2)


def test_a_server_knows_the_numbers_of_own_data_that_it_was_told(tmp_path: Path) -> None:
    told = own_data().knowing([5, 6, 7])
    assert list(told(tmp_path).sizes) == [5, 6, 7]
    assert describe(told) == describe(own_data())  # a node that was not told takes part in the same experiment


def test_a_file_of_an_earlier_federated_run_in_the_data_does_not_disturb_a_local_one(tmp_path: Path) -> None:
    (tmp_path / "1").touch()
    (tmp_path / SIZES).write_text('{"0": 5}')
    assert own_data()(tmp_path).client(1).number == 2


def test_another_bundle_leaves_nothing_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for number in ("1", "2"):
        folder = tmp_path / f"bundle-{number}" / "bundled_app"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(f"NUMBER = {number}")
        _forget(tmp_path)
        sys.path.insert(0, str(folder.parent))
        assert int(number) == importlib.import_module("bundled_app").NUMBER
    _forget(tmp_path)
    assert "bundled_app" not in sys.modules
    assert not any(path.startswith(str(tmp_path)) for path in sys.path)


def test_flower_still_has_the_waits_that_are_shortened() -> None:
    from flwr.supercore.inflatable.inflatable_utils import pull_objects
    from flwr.supernode import start_client_internal

    assert {"initial_backoff", "backoff_cap", "max_time"} <= pull_objects.__kwdefaults__.keys()
    assert callable(start_client_internal.time.sleep)
    hasten_content()
    assert pull_objects.__kwdefaults__["initial_backoff"] == AGAIN
    assert pull_objects.__kwdefaults__["backoff_cap"] == AT_LAST
    bound_content(5.0)
    assert pull_objects.__kwdefaults__["max_time"] == 5.0
