"""What a federation survives: the server app, the SuperLink and nodes are killed in the middle of rounds, with SIGKILL.

The trials run on a real deployment with TLS on this machine. They are rows of `make chaos`, and need some minutes each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower.deployed import alive_with, make_app, outcome, progfed
from progfed import rng
from progfed.codec import codec
from progfed.flower.apps import simulation
from progfed.flower.federation.federation import CONNECTION, SUPERLINK, Federation
from progfed.flower.federation.processes import family
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.train import train
from reliability import expect
from reliability.cases import Case, plain, population
from reliability.cases import outcome as chaos_outcome
from reliability.kills import finish
from reliability.rows import Job, Row
from reliability.steady import FOUR, GROWING

RUN = "tiny-seed3"
CLIENTS, NODES = 6, 3


def server_apps(job: Job) -> int:
    """The server app is killed: the same command goes on after the committed round, and ends with the same bits."""
    return _interrupted(job, lambda deployed: os.kill(deployed.server_app(), signal.SIGKILL))


def superlinks(job: Job) -> int:
    """The SuperLink is killed and started again: its nodes come back, and the run ends with the same bits."""
    return _interrupted(job, lambda deployed: deployed.lose_superlink())


def _interrupted(job: Job, kill: Callable[[Deployed], None]) -> int:
    """Kill in a later round each time, and start the same run again, as often as asked or until time is up."""
    draw, app = Random(rng.number(job.seed, "deployment")), job.folder / "app"
    experiment = make_app(app, rounds=3 * job.count, cohort=4, slow=0.3)
    progfed("run", str(experiment), "--workers", "1", "--out", str(job.folder / "local"))
    done = 0
    with Deployed(job.folder / "federation") as deployed:
        while done < job.count and time.monotonic() < job.until:
            reached, running = len(deployed.records()), deployed.run(app)
            deployed.wait_until(lambda record: record["round"] > reached)  # noqa: B023
            time.sleep(draw.uniform(0, 1.5))  # somewhere in the next round
            kill(deployed)
            deployed.leave(running)
            done += 1
        expect(deployed.run(app).wait(timeout=300) == 0, f"after {done} kills the run did not end: {deployed.log()}")
        here, there = outcome(deployed.out), outcome(job.folder / "local" / RUN)
    expect(here[0] == there[0], f"after {done} kills the run ended with other bits")
    expect(here[1] == there[1], f"after {done} kills the run has other records")
    return done


def supernodes(job: Job) -> int:
    """A SuperNode is killed: the round is completed by the others; it comes back, and trains again."""
    app, done = job.folder / "app", 0
    make_app(app, rounds=500, cohort=CLIENTS, slow=0.3)
    with Deployed(job.folder / "federation") as deployed:
        deployed.run(app, "--run-config", "deadline=12.0")
        deployed.wait_until(lambda record: not record["rejected"])
        while done < job.count and time.monotonic() < job.until:
            name = f"node-{done % NODES}"
            deployed.kill(name)
            deployed.wait_until(lambda record: record["rejected"] == {"missing": 2})
            deployed.federation.restart(name, patience=90)
            deployed.wait_until(lambda record: not record["rejected"])
            done += 1
        records = deployed.records()
    wrong = [r for r in records if r["clients"] + sum(r["rejected"].values()) != CLIENTS or r["clients"] < CLIENTS - 2]
    expect(not wrong, f"a round has other clients than those of the nodes that were there: {wrong[:1]}")
    return done


def simulations(job: Job) -> int:
    """Models over two growths on Flower's simulation: the weights, records and counters of one machine, to the bit."""
    for name in list(FOUR)[: job.count]:
        up = codec("float" if name == "normed" else "LQ-8")  # running statistics are not quantized
        base = plain(schedule=GROWING, up=up).experiment
        data = population(tuple(FOUR[name]().example.shape[1:]))
        made = replace(base, run=name, model=FOUR[name], data=data)
        here, there = job.folder / "here" / name, job.folder / "there" / name
        finish(Case(made), here)
        engine = simulation(made, there, job.folder, workers=2)
        for _ in train(made, there, data=job.folder, engine=engine, checkpoint_every=1):
            pass
        expect(chaos_outcome(here) == chaos_outcome(there), f"{name}: Flower's simulation gave other bits")
    return job.count


class Deployed:
    """A federation of three nodes that is ended with the trial, whatever happens in it."""

    def __init__(self, folder: Path) -> None:
        self.federation = Federation(folder)
        self.out = folder / "runs" / RUN
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Deployed:
        self.federation.up(NODES)
        return self

    def __exit__(self, *problem: object) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.federation.down()
        left = alive_with(str(self.federation.path))
        expect(not left, f"still running: {left}")

    def run(self, app: Path, *options: str) -> subprocess.Popen[bytes]:
        command = [self.federation.commands.path("flwr"), "run", str(app), CONNECTION, "--stream", *options]
        with open(self.federation.path / "logs" / "run.log", "ab") as log:
            process = subprocess.Popen(command, env=self.federation.commands.environment(), stdout=log, stderr=log)
        self._started.append(process)
        return process

    def leave(self, running: subprocess.Popen[bytes]) -> None:
        """No longer follow the log of a run."""
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)

    def log(self) -> str:
        return (self.federation.path / "logs" / "run.log").read_text(errors="replace")[-2000:]

    def records(self) -> list[Record]:
        return RunDirectory(self.out).records()

    def wait_until(self, holds: Callable[[Record], bool], *, seconds: float = 240) -> None:
        """Wait for a round to come, or to be there last, of which this holds."""
        end, before = time.monotonic() + seconds, max(len(self.records()) - 1, 0)
        while not any(holds(record) for record in self.records()[before:]):
            expect(time.monotonic() < end, f"the round that is waited for has not come: {self.log()}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        victim = next(process for process in self.federation.processes if process.name == name)
        os.kill(victim.pid, signal.SIGKILL)

    def lose_superlink(self) -> None:
        self.kill(SUPERLINK)
        while self.federation.answering:
            time.sleep(0.01)
        self.federation.up(NODES)

    def server_app(self) -> int:
        """The server app of the run: the one of this federation's SuperLink."""
        started = set(family(self.federation.processes[:1]))
        return next(pid for pid in alive_with("flwr-serverapp") if pid in started)


ROWS = (
    Row("Flower's simulation: same bits", 0, 4, "models", simulations),
    Row("SIGKILL of the ServerApp", 0, 5, "kills", server_apps),
    Row("SIGKILL of the SuperLink", 0, 5, "kills", superlinks),
    Row("SIGKILL of a SuperNode", 0, 5, "kills", supernodes),
)
