"""A soak: a federation over TLS whose nodes are killed, restarted, slow and lying at random, for many rounds.

`python -m reliability.soak --rounds 200`. The server notes the digest of every answer that it is handed. Afterwards the
same experiment is trained on one machine, where a client is heard in a round only if the federation was handed exactly
its honest answer: the weights must be the same. So nothing that was lost, late, repeated or false has left a trace.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from progfed.engines.local import LocalEngine
from progfed.experiments import load
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.train import setup, train
from progfed.wire.engine import ClientState, Engine, Task, Update
from reliability import expect, workspace
from reliability.deployment import NODES, RUN, Deployed, progfed

TEMPLATE = Path(__file__).parent / "soak_app"
ANSWERS = "answers.jsonl"
Answers = Mapping[int, Mapping[int, set[str]]]
"""The digests of what the server was handed, by round and client; of a round that was repeated, the last time."""


@dataclass
class Heard:
    """An engine that passes on an honest update only where the federation was handed that very one."""

    engine: Engine
    answers: Answers

    def __post_init__(self) -> None:
        self.client_states: dict[int, ClientState] = self.engine.client_states

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        asked = {task.client: task for task in tasks}
        for update in self.engine(tasks):
            given = self.answers[asked[update.client].round].get(update.client, set())
            if hashlib.sha256(update.message).hexdigest() in given:
                yield update


def answers_of(path: Path) -> Answers:
    """What the server noted: a line when a round begins, and one for each answer."""
    found: dict[int, dict[int, set[str]]] = {}
    for line in path.read_text().splitlines():
        noted = json.loads(line)
        if "digest" in noted:
            found[noted["round"]].setdefault(noted["client"], set()).add(noted["digest"])
        else:
            found[noted["round"]] = {}
    return found


def soak(rounds: int, folder: Path, *, deadline: float, seed: int, until: float) -> tuple[int, Counter[str]]:
    """Run the federation through its rounds, or until the time is over, and compare; rounds, and what was refused."""
    app, out = folder / "app", folder / "federation" / "runs" / RUN
    experiment = write_app(app, rounds=rounds, deadline=deadline)
    with Deployed(folder / "federation") as deployed, plagued(deployed, seed=seed) as killed:
        while not (out / "summary.json").exists() and time.monotonic() < until:
            running = deployed.run(app)  # a round that nobody answers ends it, and the same command goes on
            while running.poll() is None and time.monotonic() < until:
                time.sleep(0.5)
        if running.poll() is None:
            os.kill(deployed.server_app(), signal.SIGKILL)
            deployed.leave(running)
    records = RunDirectory(out).records()
    refused: Counter[str] = Counter({"nodes killed": sum(killed.values())})
    for record in records:
        refused.update(record["rejected"])
    _compare(experiment, records, answers_of(out / ANSWERS), out, folder / "alone")
    return len(records), refused


def _compare(experiment: Path, records: Sequence[Record], answers: Answers, out: Path, alone: Path) -> None:
    """Train the same rounds on this machine, hearing the same answers, and compare the weights bit by bit."""
    made = load(str(experiment))[0]
    model, data, recipe, run_id = setup(made, alone)

    @contextmanager
    def hearing() -> Iterator[Heard]:
        with LocalEngine(model, data, recipe, run_id=run_id) as engine:
            yield Heard(engine, answers)

    running = train(made, alone, data=alone, engine=hearing, checkpoint_every=1)
    for there in records:
        here = next(running)
        expect(here["clients"] == there["clients"], f"round {there['round']}: {there} where {here} was expected")
    running.close()
    ends = [_weights(folder, len(records)) for folder in (out, alone)]
    expect(ends[0] == ends[1], f"after {len(records)} rounds the federation has other weights than its honest answers")


def _weights(folder: Path, number: int) -> str:
    content = (folder / "checkpoint" / f"round-{number:08d}" / "model.safetensors").read_bytes()
    return hashlib.sha256(content).hexdigest()


@contextmanager
def plagued(deployed: Deployed, *, seed: int) -> Iterator[Counter[str]]:
    """While the block runs, kill one node after the other at random moments, and start it again after a while."""
    draw, ended, killed = Random(seed), threading.Event(), Counter[str]()

    def plague() -> None:
        while not ended.wait(draw.expovariate(1 / 20)):
            name = f"node-{draw.randrange(NODES)}"
            deployed.kill(name)
            killed[name] += 1
            if not ended.wait(draw.uniform(0, 15)):
                deployed.federation.restart(name, patience=120)

    thread = threading.Thread(target=plague)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def write_app(folder: Path, *, rounds: int, deadline: float) -> Path:
    """The app of `progfed init` with a client that lies and dawdles, and a server that notes; its experiment's file."""
    progfed("init", str(folder))
    inside = folder / "fedapp"
    for name in ("client.py", "server.py", "experiment.py"):
        text = (
            (TEMPLATE / f"{name}.in").read_text().replace("@ROUNDS@", str(rounds)).replace("@DEADLINE@", str(deadline))
        )
        (inside / name).write_text(text)
    tiny = Path(__file__).parents[1] / "tests" / "tiny.py"
    (inside / "tiny.py").write_bytes(tiny.read_bytes())
    return inside / "experiment.py"


def main() -> None:
    """Soak, and say what happened."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=200)
    options.add_argument("--minutes", type=float, default=60, help="stop after so many, and compare what there is")
    options.add_argument("--deadline", type=float, default=8.0, help="seconds of a round")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    began = time.monotonic()
    attempt = partial(soak, deadline=chosen.deadline, seed=chosen.seed, until=began + 60 * chosen.minutes)
    with workspace() as folder:
        done, refused = attempt(chosen.rounds, folder)
    said = ", ".join(f"{number} {reason}" for reason, number in sorted(refused.items()))
    print(f"{done} of {chosen.rounds} rounds in {time.monotonic() - began:.0f} s ({said}): the same weights")
    sys.exit(0)


if __name__ == "__main__":
    main()
