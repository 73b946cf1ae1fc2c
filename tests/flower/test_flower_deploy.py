"""Keys that fit, processes that end, and an app that is written whole: what a deployment is made of."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import ssl
import stat
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from typer.testing import CliRunner

from progfed.cli import app
from progfed.data.own import SIZES, OwnData
from progfed.deploy.federation import Federation
from progfed.deploy.keys import make_certificates, make_node_key
from progfed.deploy.processes import Process, family, free_port, read, start, start_time, stop, write
from progfed.engines.flower.supernode import AGAIN, hasten_content
from progfed.engines.flower.worker import _forget
from progfed.errors import DataError, ProgfedError, StorageError, UsageError
from progfed.examples import Examples

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
    (tmp_path / SIZES).write_text('{"0": 5, "1": 6, "2": 7}')
    assert list(own_data()(tmp_path).sizes) == [5, 6, 7]
    with pytest.raises(DataError, match="4 clients"):
        replace(own_data(), clients=4)(tmp_path)


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

    assert "initial_backoff" in pull_objects.__kwdefaults__
    assert callable(start_client_internal.time.sleep)
    hasten_content()
    assert pull_objects.__kwdefaults__["initial_backoff"] == AGAIN
