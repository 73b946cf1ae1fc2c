"""What Flower costs: bytes on the wire next to the payload, and seconds of a round that are not training.

`python benchmarks/flower.py` runs the app of `progfed init`, with wider layers, on a federation of three nodes on this
machine, whose nodes reach the SuperLink through a proxy that counts bytes; `--plain` does so with Flower's own node
processes. What training alone takes is measured in the same way on this machine, without Flower.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.deployed import progfed
from progfed.flower.federation.federation import CONNECTION, Federation
from progfed.flower.federation.processes import free_port
from progfed.runs.directory import RunDirectory


class Proxy(threading.Thread):
    """Passes bytes on to a port of this machine, and counts them; `up` is what nodes send."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port, self._target = self._listener.getsockname()[1], port
        self.up = self.down = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    self._pass(key.fileobj, *key.data)  # type: ignore[arg-type]

    def _accept(self) -> None:
        node, _ = self._listener.accept()
        link = socket.create_connection(("127.0.0.1", self._target))
        self._selector.register(node, selectors.EVENT_READ, (link, "up"))
        self._selector.register(link, selectors.EVENT_READ, (node, "down"))

    def _pass(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        try:
            data = source.recv(1 << 16)
            if data:
                target.sendall(data)
                setattr(self, direction, getattr(self, direction) + len(data))
                return
        except OSError:
            pass
        for one in (source, target):
            if one.fileno() >= 0:
                self._selector.unregister(one)
                one.close()


def make_wide_app(folder: Path, rounds: int) -> Path:
    """The app of `progfed init` with 270,000 parameters; returns the experiment's file."""
    progfed("init", str(folder))
    experiment = folder / "fedapp" / "experiment.py"
    text = (
        experiment.read_text()
        .replace("(8, 16)", "(8, 512)")
        .replace("(16, ", "(512, ")
        .replace("512, 16)", "512, 512)")
    )
    experiment.write_text(text.replace("progressive(6,", f"progressive({rounds},"))
    return experiment


def trained_alone(experiment: Path, out: Path) -> list[dict[str, Any]]:
    """The records of the same run in one process: three clients one after the other."""
    progfed("run", str(experiment), "--workers", "1", "--out", str(out))
    return RunDirectory(out / "run-seed0").records()


def measure(folder: Path, *, plain: bool, rounds: int) -> dict[str, object]:
    """Bytes and seconds of one run."""
    alone = [record["seconds"] for record in trained_alone(make_wide_app(folder / "app", rounds), folder / "alone")]
    port = free_port()
    proxy = Proxy(port)
    proxy.start()
    federation = Federation(folder / "federation", plain=plain, via=proxy.port)
    federation.up(3, port=port)
    try:
        before = proxy.down, proxy.up
        command = [federation.commands.path("flwr"), "run", str(folder / "app"), CONNECTION, "--stream"]
        subprocess.run(command, env=federation.commands.environment(), check=True, stdout=subprocess.DEVNULL)
        wire = proxy.down - before[0], proxy.up - before[1]
        listed = federation.commands.listed("list", "--limit", "1", CONNECTION)["runs"][0]
    finally:
        federation.down()
    records = RunDirectory(federation.path / "runs" / "run-seed0").records()
    seconds = [record["seconds"] for record in records]
    return {
        "nodes": "plain" if plain else "kept alive",
        "rounds": len(records),
        "seconds_training": round(statistics.median(alone[1:]) / 3, 3),
        "seconds_first_round": round(seconds[0], 2),
        "seconds_median_round": round(statistics.median(seconds[1:]), 2),
        "payload_down": sum(record["down_bytes"] for record in records),
        "payload_up": sum(record["up_bytes"] for record in records),
        "wire_down": wire[0],
        "wire_up": wire[1],
        "flower": {key: value for key, value in listed.items() if "byte" in key or "traffic" in key},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="progfed-bench-") as folder:
        print(json.dumps(measure(Path(folder), plain=options.plain, rounds=options.rounds)))


if __name__ == "__main__":
    main()
