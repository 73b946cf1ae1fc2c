"""Mutants of the core, and whether the tests notice: `python -m reliability.mutant_trials --count 300`.

One process imports everything and collects the tests. For each mutant it forks; the child exchanges the code of one
function and runs the tests that guard its file until one fails: first those that have noticed other mutants of the
file, then the fastest. Survivors are printed: each is a test that is missing, or a fault that changes nothing, and
which of the two a person has to say.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import CodeType, FunctionType

import pytest
from _pytest.runner import runtestprotocol

from reliability.kills import prepare
from reliability.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "progfed"
CORE = (
    *("blocks.py", "files.py", "rng.py", "schedule.py", "tensors.py"),
    *("wire", "codec", "server", "client", "recipe", "costs", "engines"),
    *("runs/checkpoint.py", "runs/directory.py", "runs/resume.py"),
)
"""The files in which faults are put: what decides on bytes, bits and what is saved."""
SAFETY = ("reliability/test_safety.py", "reliability/test_clients.py")
LOOP = ("server/test_loop.py", "server/test_replies.py")
GUARDS: dict[str, tuple[str, ...]] = {
    "codec/": ("codec/", "wire/"),
    "wire/": ("wire/", "server/test_replies.py", *SAFETY),
    "server/": ("server/", *SAFETY, "recipe/test_growth.py"),
    "client/": ("client/", *LOOP, "recipe/test_recipe.py", *SAFETY),
    "recipe/": ("recipe/", *LOOP, "test_schedule.py", "reliability/test_safety.py"),
    "costs/": ("costs/", "server/test_loop.py", "server/test_compression.py"),
    "engines/": ("engines/", *SAFETY),
    "runs/": ("runs/test_checkpoint.py", "runs/test_train.py", "runs/test_best.py", "reliability/test_safety.py"),
    "files.py": ("runs/test_checkpoint.py", "runs/test_train.py", "reliability/test_safety.py"),
    "blocks.py": ("test_blocks.py", *LOOP),
    "rng.py": ("test_rng.py", "recipe/test_privacy.py", "codec/test_rotate.py", *LOOP),
    "schedule.py": ("test_schedule.py", "recipe/test_recipe.py"),
    "tensors.py": ("test_tensors.py", "test_blocks.py", *LOOP),
}
"""Which tests guard a file of the core, by the beginning of its name; the examples in its docstrings do as well."""
EXAMPLES = "test_architecture.py::test_examples_in_docstrings_run"
BUDGET = 20
"""Seconds of tests that a mutant is tried with, counted by the processor."""


def core() -> list[Path]:
    """The files of the core."""
    found = [SOURCE / name for name in CORE]
    return sorted(file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path]))


def drawn(count: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants of all there are, drawn evenly and in any order; every run with the same seed tries the same."""
    every = [one for path in core() if not only or any(part in str(path) for part in only) for one in mutants(path)]
    chosen = Random(seed).sample(range(len(every)), min(count, len(every)))
    return [every[index] for index in chosen]


class Trials:
    """A plugin of pytest that tries mutants instead of running the collected tests once."""

    def __init__(self, chosen: Sequence[Mutant], until: float, budget: int) -> None:
        self.chosen, self.until, self.budget = chosen, until, budget
        self.survivors: list[str] = []
        self.noticed = self.tried = 0
        self._seconds: dict[str, float] = {}
        self._kills: Counter[tuple[Path, str]] = Counter()
        self._sound: dict[str, bool] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant, until the time is over."""
        prepare()
        items = {item.nodeid.removeprefix("tests/"): item for item in session.items}
        for mutant in self.chosen:
            if time.monotonic() > self.until:
                break
            self._try(mutant, items)
        return True

    def _try(self, mutant: Mutant, items: dict[str, pytest.Item]) -> None:
        code, name = mutant.code(), str(mutant.path.relative_to(SOURCE))
        victims = _live(mutant, code) if code else []
        if code is None or not victims:
            return
        self.tried += 1
        while True:
            guards = self._guards(mutant, name, items)

            def attempt(write: Callable[[bytes], object]) -> None:
                for victim in victims:
                    victim.__code__ = code
                _run(guards, write, self.budget)  # noqa: B023

            said = _forked(attempt, cpu=self.budget + 20)
            run = [json.loads(line) for line in said.splitlines()]
            self._seconds |= {test: seconds for test, seconds, _ in run}
            failed = next((test for test, _, passed in run if not passed), "")
            if not failed and b'"end"' not in said:  # a test that never ended, or took the process with it
                failed = guards[len(run)][0]
            if not failed:
                self.survivors.append(f"{name}:{mutant.line} {mutant.function}: {mutant.change}")
                print(f"survived {len(run) - 1} tests: {self.survivors[-1]}", file=sys.__stderr__, flush=True)
                return
            self._kills[mutant.path, failed] += 1
            if self._is_sound(failed, items[failed]):
                self.noticed += 1
                if self.tried % 25 == 0:
                    print(f"{self.noticed} of {self.tried} noticed", file=sys.__stderr__, flush=True)
                return

    def _guards(self, mutant: Mutant, name: str, items: dict[str, pytest.Item]) -> list[tuple[str, pytest.Item]]:
        """The tests that guard a file, those first that are likely to notice soon."""
        prefixes = next(tests for beginning, tests in GUARDS.items() if name.startswith(beginning))
        module = "progfed." + name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        found = [test for test in items if test.startswith(prefixes) or test == f"{EXAMPLES}[{module}]"]
        # what nobody has timed is taken to be quick, and comes in the order of the files
        found.sort(key=lambda test: (-self._kills[mutant.path, test], self._seconds.get(test, 0.05)))
        return [(test, items[test]) for test in found if self._sound.get(test, True)]

    def _is_sound(self, test: str, item: pytest.Item) -> bool:
        """Whether a test passes where there is no fault: what fails anyway has noticed nothing."""
        if test not in self._sound:
            said = _forked(lambda write: _run([(test, item)], write, self.budget), cpu=self.budget + 20)
            self._sound[test] = bool(said) and json.loads(said.splitlines()[0])[2]
        return self._sound[test]


def _live(mutant: Mutant, code: CodeType) -> list[FunctionType]:
    """The functions in this process that have the code which the mutant changes."""
    return [
        found
        for found in gc.get_objects()
        if type(found) is FunctionType  # not isinstance, which some objects answer with a warning
        and found.__code__.co_firstlineno == mutant.first
        and found.__code__.co_filename == str(mutant.path)
        and found.__code__.co_name == code.co_name
        and found.__code__.co_freevars == code.co_freevars
    ]


def _run(tests: Sequence[tuple[str, pytest.Item]], write: Callable[[bytes], object], budget: float) -> None:
    """Run tests until one fails or the budget is spent, and write for each how long it took and whether it passed."""
    for name, item in tests:
        began = time.process_time()
        passed = _passes(item)
        write(json.dumps([name, time.process_time() - began, passed]).encode() + b"\n")
        if not passed or time.process_time() > budget:
            break
    write(json.dumps(["end", 0, True]).encode() + b"\n")


def _passes(item: pytest.Item) -> bool:
    """Whether a test passes, with its fixtures."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return all(report.passed for report in reports)


def _forked(work: Callable[[Callable[[bytes], object]], object], *, cpu: int, wall: float = 900.0) -> bytes:
    """What a forked child wrote before it ended, or was ended by the limit on its seconds; nothing where it crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 5))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        code = 1
        try:
            work(lambda said: os.write(writing, said))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    said = b"".join(_read(reading, wall))
    os.close(reading)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what the test has started, and the child itself if its time is over
    os.waitpid(child, 0)
    return said


def _read(handle: int, seconds: float) -> Iterator[bytes]:
    end = time.monotonic() + seconds
    while select.select([handle], [], [], max(0.0, end - time.monotonic()))[0]:
        piece = os.read(handle, 2**16)
        if not piece:
            return
        yield piece


def main() -> None:
    """Try mutants and say which survive; exit code 1 where more than a tenth do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[], help="only files whose path contains this")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--budget", type=int, default=BUDGET, help="seconds of tests for one mutant")
    options = parser.parse_args()
    chosen = drawn(options.count, options.seed, options.only)
    trials = Trials(chosen, time.monotonic() + 60 * options.minutes, options.budget)
    wanted = {name for tests in GUARDS.values() for name in tests}
    pytest.main([str(ROOT / "tests" / name) for name in sorted({*wanted, EXAMPLES})], plugins=[trials])
    share = trials.noticed / max(1, trials.tried)
    print(f"{trials.noticed} of {trials.tried} mutants were noticed ({share:.1%})", *trials.survivors, sep="\n")
    sys.exit(int(share < 0.9))


if __name__ == "__main__":
    main()
