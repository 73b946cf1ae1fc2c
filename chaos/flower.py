"""What a federation survives: nodes and the server are killed in the middle of a round, with SIGKILL.

`python chaos/flower.py` runs all scenes on a real deployment with TLS on this machine and prints a line for each;
`python chaos/flower.py node` only those that are named. Exit code 1 if one has failed. Takes some minutes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.deployed import alive_with, make_app, outcome, progfed
from progfed.deploy.federation import CONNECTION, Federation
from progfed.deploy.processes import Process, family
from progfed.records import RunDirectory

RUN = "tiny-seed3"


def node(folder: Path) -> str:
    """A SuperNode is killed in the middle of a round: the round is completed by the rest; it comes back, and trains."""
    app = folder / "app"
    make_app(app, rounds=12, cohort=6, slow=1.0)
    with Deployed(folder / "federation") as deployed:
        running = deployed.run(app, "--run-config", "deadline=12.0")
        deployed.wait_for(2)
        deployed.kill("node-1")
        deployed.wait_for(4)
        deployed.federation.restart("node-1", patience=90)
        assert running.wait(timeout=400) == 0
        records = deployed.records()
    missed = [record["round"] for record in records if record["rejected"]]
    assert len(records) == 13
    assert missed, "the node was killed too late to be missed"
    assert all(record["rejected"] == {"missing": 2} for record in records if record["rejected"])
    assert all(record["clients"] + sum(record["rejected"].values()) == 6 for record in records)
    return f"rounds {missed} of 13 went on with 4 of 6 clients"


def server(folder: Path) -> str:
    """The server app is killed in the middle of a round: the same command goes on, and ends with the same bits."""
    app = folder / "app"
    experiment = make_app(app, rounds=5, cohort=4, slow=0.5)
    progfed("run", str(experiment), "--workers", "1", "--out", str(folder / "local"))
    with Deployed(folder / "federation") as deployed:
        running = deployed.run(app)
        deployed.wait_for(2)
        time.sleep(1.0)  # into the next round
        os.kill(deployed.server_app(), signal.SIGKILL)
        committed = len(deployed.records())
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)
        assert deployed.run(app).wait(timeout=300) == 0
        here, there = outcome(deployed.out), outcome(folder / "local" / RUN)
    assert committed < len(there[1])
    assert here == there
    return f"killed after {committed} rounds of {len(there[1])}: the same {len(there[1])} records and bits"


def memory(folder: Path) -> str:
    """Everything is ended and started again in the middle of a run: error feedback and held models are still there."""
    app = folder / "app"
    experiment = make_app(app, rounds=5, cohort=6, slow=0.3)
    progfed("run", str(experiment), "--workers", "1", "--out", str(folder / "local"))
    with Deployed(folder / "federation") as deployed:
        running = deployed.run(app)
        deployed.wait_for(2)
        os.kill(deployed.server_app(), signal.SIGKILL)
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)
        deployed.federation.down()
        deployed.federation.up(3)
        assert deployed.run(app).wait(timeout=300) == 0
        here, there = outcome(deployed.out), outcome(folder / "local" / RUN)
    assert here == there
    return "all nodes, the server and the SuperLink were started anew: the same records and bits"


class Deployed:
    """A federation of three nodes that is ended with the scene, whatever happens in it."""

    def __init__(self, folder: Path) -> None:
        self.federation = Federation(folder)
        self.out = folder / "runs" / RUN
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Deployed:
        self.federation.up(3)
        return self

    def __exit__(self, *problem: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.federation.down()
        left = alive_with(str(self.federation.path))
        assert not left, f"still running: {left}"

    def run(self, app: Path, *options: str) -> subprocess.Popen[bytes]:
        command = [self.federation.command("flwr"), "run", str(app), CONNECTION, "--stream", *options]
        log = open(self.federation.path / "logs" / "run.log", "ab")  # noqa: SIM115 the process has it
        process = subprocess.Popen(command, env=self.federation.environment(), stdout=log, stderr=log)
        log.close()
        self._started.append(process)
        return process

    def records(self) -> list[dict[str, object]]:
        return RunDirectory(self.out).records()

    def wait_for(self, rounds: int, *, seconds: float = 200) -> None:
        end = time.monotonic() + seconds
        while len(self.records()) < rounds:
            assert time.monotonic() < end, f"round {rounds} has not come: {self.federation.path / 'logs'}"
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        victim: Process = next(process for process in self.federation.processes if process.name == name)
        os.kill(victim.pid, signal.SIGKILL)

    def server_app(self) -> int:
        """The server app of the run: the one of this federation's SuperLink."""
        started = set(family(self.federation.processes[:1]))
        return next(pid for pid in alive_with("flwr-serverapp") if pid in started)


SCENES: dict[str, Callable[[Path], str]] = {"node": node, "server": server, "memory": memory}


def main() -> None:
    failed = 0
    for name in sys.argv[1:] or SCENES:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="progfed-chaos-") as folder:
            try:
                said = SCENES[name](Path(folder))
            except Exception as error:
                failed += 1
                said = f"FAILED {type(error).__name__}: {error}"
                log = Path(folder) / "federation" / "logs" / "run.log"
                said += "\n" + log.read_text()[-3000:] if log.exists() else ""
        print(f"{name}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
