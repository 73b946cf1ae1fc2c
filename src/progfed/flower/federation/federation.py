"""A SuperLink and its SuperNodes on this machine: starts, watches and ends them, with all their files in one folder."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from progfed.errors import StorageError, TrainingError, UsageError
from progfed.files import replace_file
from progfed.flower.federation.commands import Commands, script
from progfed.flower.federation.processes import Process, free_port, listening, read, start, stop, write

CONNECTION = "progfed"
"""What the SuperLink is called in the federation's Flower settings."""
SUPERLINK, PROCESSES, SETTINGS = "superlink", "processes.json", "settings.json"
_READY = 90.0


@dataclass(frozen=True)
class Federation:
    """The folder of a federation on this machine.

    Args:
        folder: The folder.
        plain: Whether nodes are Flower's own commands, which start a process for every message; otherwise the process
            that trains is kept alive.
        via: The port at which nodes reach the SuperLink, where it is not the SuperLink's own: of a tunnel or a proxy.
    """

    folder: Path
    plain: bool = False
    via: int = 0

    @property
    def path(self) -> Path:
        """The folder, as an absolute path."""
        return self.folder.absolute()

    @property
    def processes(self) -> list[Process]:
        """The processes that were started, running or not."""
        return read(self.path / PROCESSES)

    @property
    def running(self) -> list[Process]:
        """The processes that are running."""
        return [process for process in self.processes if process.running]

    @property
    def answering(self) -> bool:
        """Whether the SuperLink accepts connections."""
        return any(process.name == SUPERLINK for process in self.running)

    @property
    def commands(self) -> Commands:
        """Flower's commands, with the settings of this federation."""
        return Commands(self.path / "flwr", poll=1.0 if self.plain else 0.1)

    @property
    def data(self) -> Path | None:
        """The folder of data that was chosen for the nodes and for the apps that `progfed deploy run` starts."""
        chosen = self.path / SETTINGS
        return Path(json.loads(chosen.read_text())["data"]) if chosen.exists() else None

    def up(self, nodes: int, *, port: int = 0, data: Path | None = None) -> int:
        """Start the SuperLink and its SuperNodes; keys and certificates that exist are used again.

        In a federation that is running, processes that have ended are started again.

        Args:
            nodes: The number of SuperNodes.
            port: The SuperLink's port.
            data: The folder of data; by default the one chosen before, or `data` in the federation's folder.

        Returns:
            The port.
        """
        if self.running:
            return self._mended(nodes)
        if nodes < 1:
            raise UsageError(f"a federation needs at least 1 node, not {nodes}")
        if port and listening(port):
            raise UsageError(f"port {port} is in use: choose another --port, or none to have a free one chosen")
        self.down()  # what is left of a federation that has ended otherwise
        self._prepare(nodes)
        if data is not None:
            replace_file(self.path / SETTINGS, json.dumps({"data": str(data.absolute())}).encode())
        port = port or free_port()
        try:
            self._remember([self._superlink(port)])
            self._wait_for_superlink(self.processes[0])
            self._register(nodes)
            for number in range(nodes):
                self._remember(self.node(number, nodes, port))
            self._wait_for_nodes()
        except BaseException:
            self.down()
            raise
        return port

    def _mended(self, nodes: int) -> int:
        """Start the processes that have ended; returns the port."""
        ended = {process.name.removesuffix("-worker") for process in self.processes if not process.running}
        there = {process.name for process in self._nodes()}
        if not ended or len(there) != nodes:
            raise UsageError(
                f"a federation of {len(there)} nodes is running in {self.folder}: `progfed deploy status` shows it, "
                "`progfed deploy down` ends it"
            )
        for name in sorted(ended, reverse=True):  # the SuperLink first, as nodes need it
            self.restart(name)
        self._wait_for_nodes()
        return self.processes[0].port

    def down(self) -> int:
        """End everything; returns how many processes there were."""
        processes = self.processes
        superlink = [process for process in processes if process.name == SUPERLINK]
        stop([process for process in processes if process not in superlink])  # nodes first, so that they can sign off
        stop(superlink)
        if processes:
            write(self.path / PROCESSES, [])
        return len(processes)

    def node(self, number: int, nodes: int, port: int) -> list[Process]:
        """Start a SuperNode, and the process that trains for it."""
        runtime = free_port()
        settings: dict[str, Any] = {"partition-id": number, "num-partitions": nodes}
        settings["memory"] = str(self.path / f"node-{number}" / "memory")
        settings["data"] = str(self.data or self.path / "data")
        options = ["--root-certificates", str(self.path / "certificates" / "ca.crt")]
        options += ["--superlink", f"127.0.0.1:{self.via or port}"]
        options += ["--auth-supernode-private-key", str(self._key(number))]
        options += ["--host", "127.0.0.1", "--port", str(runtime)]
        options += ["--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())]
        if self.plain:
            return [self._start(f"node-{number}", [self.commands.path("flower-supernode"), *options], runtime)]
        swift = [*script("supernode"), *options, "--isolation", "process"]
        node = self._start(f"node-{number}", swift, runtime)
        worker = [sys.executable, "-m", "progfed.flower.worker", "--runtime", f"127.0.0.1:{runtime}"]
        return [node, self._start(f"node-{number}-worker", [*worker, "--parent", str(node.pid)], 0)]

    def _prepare(self, nodes: int) -> None:
        """Make certificates, keys and Flower's settings, where they do not exist."""
        from progfed.flower.federation.keys import make_certificates, make_node_key, make_operator_secret

        try:
            if not self.path.exists():
                self.path.mkdir(parents=True, mode=0o700)  # the database holds tokens, as readable as it is
            (self.path / "flwr").mkdir(exist_ok=True)
            if not self._secret.exists():
                make_operator_secret(self._secret)
            if not (self.path / "certificates" / "server.key").exists():
                make_certificates(self.path / "certificates", ["127.0.0.1", "localhost"])
            for number in range(nodes):
                if not self._key(number).exists():
                    make_node_key(self._key(number))
        except OSError as error:
            raise StorageError(f"{self.folder} cannot be written ({error.strerror}): choose another --dir") from error

    def _superlink(self, port: int) -> Process:
        from progfed.flower.federation.keys import remember_operator

        certificates = self.path / "certificates"
        connection = {"address": f"127.0.0.1:{port}", "root-certificates": str(certificates / "ca.crt")}
        lines = ["[superlink]", f'default = "{CONNECTION}"', f"[superlink.{CONNECTION}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in connection.items()]
        (self.path / "flwr" / "config.toml").write_text("\n".join(lines) + "\n")
        remember_operator(self.path / "flwr", connection["address"], self._secret)
        command = [*script("superlink"), "--operator-secret", str(self._secret)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--ssl-ca-certfile", str(certificates / "ca.crt")]
        command += ["--ssl-certfile", str(certificates / "server.pem")]
        command += ["--ssl-keyfile", str(certificates / "server.key")]
        command += ["--enable-supernode-auth", "--database", str(self.path / "state.db")]
        return self._start(SUPERLINK, [*command, "--disable-runtime-dependency-installation"], port)

    def _start(self, name: str, command: list[str], port: int) -> Process:
        log = self.path / "logs" / f"{name}.log"
        process = start(name, command, log=log, environment=self.commands.environment(), cwd=self.path)
        return replace(process, port=port)

    def _register(self, nodes: int) -> None:
        """Register the nodes' public keys with the SuperLink, those that it does not know."""
        known = self.path / "registered.json"
        before = json.loads(known.read_text()) if known.exists() else []
        new = [str(self._key(number)) for number in range(nodes) if str(self._key(number)) not in before]
        if new:
            self.commands.several([["supernode", "register", f"{key}.pub", CONNECTION] for key in new])
        known.write_text(json.dumps([*before, *new]))

    def _wait_for_superlink(self, process: Process) -> None:
        end = time.monotonic() + _READY
        while not listening(process.port):
            if time.monotonic() > end or not process.running:
                raise TrainingError(self._said("the SuperLink does not answer", process))
            time.sleep(0.05)

    def _remember(self, started: list[Process]) -> None:
        """Write down what was started at once, so that `down` finds it even if this command is killed."""
        write(self.path / PROCESSES, [*self.processes, *started])

    def _wait_for_nodes(self) -> None:
        """Wait until all nodes are connected; one that was killed is refused for a minute, so it is started again."""
        end = time.monotonic() + _READY
        while waiting := [process for process in self._nodes() if not self._connected(process)]:
            if time.monotonic() > end:
                raise TrainingError(self._said("a node does not connect", waiting[0]))
            for process in waiting:
                if not process.running:
                    self.restart(process.name)
            time.sleep(0.1)

    def restart(self, name: str, *, patience: float = 0.0) -> None:
        """Start a process that has ended: the SuperLink, to which nodes come back by themselves, or a node.

        A node's worker is started with it. With `patience`, a node is tried for so many seconds, until the SuperLink
        accepts it again.
        """
        if name == SUPERLINK:
            self._restart_superlink()
            return
        number, end = int(name.removeprefix("node-")), time.monotonic() + patience
        while True:
            gone = [process for process in self.processes if process.name in (name, f"{name}-worker")]
            stop(gone)
            kept = [process for process in self.processes if process not in gone]
            port = next(process.port for process in kept if process.name == SUPERLINK)
            started = self.node(number, 1 + len({p.name for p in self._nodes()} - {name}), port)
            write(self.path / PROCESSES, [*kept, *started])
            while started[0].running and time.monotonic() < end:
                if self._connected(started[0]):
                    return
                time.sleep(0.1)
            if time.monotonic() >= end:
                return

    def _restart_superlink(self) -> None:
        before = next(process for process in self.processes if process.name == SUPERLINK)
        stop([before])  # the server apps that it had started
        kept = [process for process in self.processes if process != before]
        write(self.path / PROCESSES, [self._superlink(before.port), *kept])
        self._wait_for_superlink(self.processes[0])

    def _nodes(self) -> list[Process]:
        return [p for p in self.processes if p.name != SUPERLINK and not p.name.endswith("-worker")]

    def _connected(self, process: Process) -> bool:
        """Whether the SuperLink has accepted a node since the node was started."""
        return process.running and "SuperNode ID" in self._log(process).read_text(errors="replace")

    def _said(self, what: str, process: Process) -> str:
        """An error text with the last lines of a process's log."""
        log = self._log(process)
        lines = log.read_text(errors="replace").strip().splitlines()[-5:]
        return f"{what}; the end of {log}:\n" + "\n".join(lines)

    def _log(self, process: Process) -> Path:
        return self.path / "logs" / f"{process.name}.log"

    def _key(self, number: int) -> Path:
        return self.path / "keys" / f"node-{number}"

    @property
    def _secret(self) -> Path:
        """The file with the secret of the operator, who alone may register nodes and start runs."""
        return self.path / "keys" / "operator.secret"
