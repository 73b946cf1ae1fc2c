"""Each safeguard disabled one at a time: some test has to fail, or the safeguard is not guarded by any.

A copy of the package is changed in one place and the tests that should notice run against the copy.
`python -m reliability.mutations fsync lock` tries only the safeguards with these words in their names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

NAME = "safeguards disabled one at a time"
ROOT = Path(__file__).parents[1]
INTERRUPTION = "tests/reliability/test_interruption.py"
CLIENTS = "tests/reliability/test_clients.py"
POWER = (INTERRUPTION, "power_lost")
POINTS = (INTERRUPTION, "named_point")
HOSTILE = (CLIENTS, "five_thousand")
DAMAGED = ("tests/runs/test_checkpoint.py", "damaged_checkpoint")
IN_USE = ("tests/runs/test_train.py", "directory_in_use")


@dataclass(frozen=True)
class Mutation:
    """A safeguard, the place that is it, what stands there instead, and the test that has to notice."""

    safeguard: str
    file: str
    old: str
    new: str
    noticed: tuple[str, str]


MUTATIONS = (
    Mutation("fsync of files", "files.py", "        os.fsync(file.fileno())\n", "", POWER),
    Mutation("fsync of folders", "files.py", "        os.fsync(handle)\n", "        pass\n", POWER),
    Mutation("fsync of records", "runs/directory.py", "os.fsync(self._file.fileno())", "pass", POWER),
    Mutation("rename into place", "files.py", 'path.with_name(f".{path.name}.writing")', "path", POINTS),
    Mutation("digests of a checkpoint", "runs/checkpoint.py", '!= manifest["sha256"][name]:', "is None:", DAMAGED),
    Mutation("two checkpoints", "runs/checkpoint.py", "KEEP = 2", "KEEP = 1", DAMAGED),
    Mutation("records cut back", "runs/directory.py", "            file.truncate()\n", "", POINTS),
    Mutation(
        "later damaged checkpoints dropped",
        "runs/checkpoint.py",
        "found[found.index(final) :][:KEEP]",
        "found[:KEEP]",
        (INTERRUPTION, "push_out"),
    ),
    Mutation(
        "buffers sent as floats",
        "recipe/buffers.py",
        " if buffers else recipe",
        " if not buffers else recipe",
        ("tests/recipe/test_buffers.py", "statistics_are_those"),
    ),
    Mutation("lock on the folder", "runs/directory.py", "LOCK_EX", "LOCK_SH", IN_USE),
    Mutation(
        "lock left by workers",
        "runs/directory.py",
        "register_after_fork(lock, lambda held: held.close())",
        "pass",
        (INTERRUPTION, "outlives"),
    ),
    Mutation(
        "clear error of a full disk",
        "files.py",
        "    except OSError as error:",
        "    except EOFError as error:",
        (INTERRUPTION, "full_disk"),
    ),
    Mutation(
        "same set-up on resume",
        "runs/resume.py",
        "if found.state[key] != now:",
        "if False:",
        ("tests/runs/test_train.py", "number_of_threads"),
    ),
    Mutation("digest of a message", "wire/message.py", "if _digest(header, body) != digest:", "if False:", HOSTILE),
    Mutation("schema of a message", "wire/message.py", '        "schema",\n', '        "",\n', HOSTILE),
    Mutation("round of a message", "wire/message.py", '        "round",\n', '        "",\n', HOSTILE),
    Mutation("stage of a message", "wire/message.py", '        "stage",\n', '        "",\n', HOSTILE),
    Mutation("length of a message", "wire/message.py", "if fields[-1] != len(body) or", "if False and", HOSTILE),
    Mutation("bound on examples", "wire/message.py", "if expected.examples and not", "if False and not", HOSTILE),
    Mutation(
        "finite numbers only",
        "codec/base.py",
        "if not (float(low) >= -limit",
        "if False and (float(low) >= -limit",
        HOSTILE,
    ),
    Mutation(
        "one update a client",
        "server/replies.py",
        "or update.client in seen:",
        "or False:",
        ("tests/server/test_loop.py", "bad_update"),
    ),
    Mutation(
        "enough updates",
        "server/replies.py",
        "if self._valid < self._recipe.needed:",
        "if False:",
        (CLIENTS, "without_any_reply"),
    ),
    Mutation(
        "workers that leave signals to the engine",
        "engines/worker.py",
        "signal.signal(number, signal.SIG_IGN)",
        "signal.signal(number, signal.SIG_DFL)",
        (INTERRUPTION, "ctrl_c"),
    ),
    Mutation(
        "workers that end with a killed run",
        "engines/worker.py",
        "    threading.Thread(target=_end_with_engine, daemon=True).start()\n",
        "",
        (INTERRUPTION, "middle_of_a_client"),
    ),
    Mutation(
        "clipping before noise",
        "recipe/privacy.py",
        "clip(update, self.bound(count(update)))",
        "update",
        ("tests/recipe/test_privacy.py", "one_client_moves"),
    ),
    Mutation(
        "columns of a report with names of their own",
        "report/present.py",
        'f"{field.name}_{name}": getattr(item, name) if item',
        "f\"{field.name.replace('printed', 'paper')}_{name}\": getattr(item, name) if item",
        ("tests/report/test_tables.py", "two_columns"),
    ),
    Mutation(
        "evaluation in batches that fit into memory",
        "evaluate.py",
        "return max(1, min(BATCH, some * ROOM // max(1, peak)))",
        "return BATCH",
        ("tests/test_evaluate.py", "within_its_room"),
    ),
    Mutation(
        "one volume at a time",
        "evaluate.py",
        "return max(1, min(BATCH, some * ROOM // max(1, peak)))",
        "return BATCH",
        ("tests/test_evaluate.py", "128_cubed"),
    ),
    Mutation(
        "momentum that is kept",
        "client/visit.py",
        "            step.resume([self._velocity.get(name) for name in self._learning])\n",
        "            pass\n",
        ("tests/server/test_loop.py", "momentum_that_is_kept"),
    ),
    Mutation(
        "momentum that outlives a growth",
        "client/visit.py",
        "self._velocity |= zip(self._learning, step.velocity, strict=False)",
        "self._velocity = dict(zip(self._learning, step.velocity, strict=False))",
        ("tests/server/test_loop.py", "survivors_keep"),
    ),
    Mutation(
        "compiled models unwrapped",
        "split/trace.py",
        'model._modules.get("_orig_mod") or ',
        "",
        ("tests/split/test_training.py", "taken_off"),
    ),
    Mutation(
        "compiled layers refused",
        "split/trace.py",
        "    if compiled:\n",
        "    if False:\n",
        ("tests/split/test_training.py", "compiled_layers"),
    ),
    Mutation(
        "short forms of a recipe",
        "recipe/recipe.py",
        "understand(getattr(self, name))",
        "getattr(self, name)",
        ("tests/recipe/test_recipe.py", "short_form"),
    ),
)


def survivors(mutations: Sequence[Mutation] = MUTATIONS) -> list[str]:
    """Disable every safeguard in turn; those that no test missed."""
    began, unnoticed = time.monotonic(), []
    passing = {noticed: _tests(ROOT / "src", noticed) == 0 for noticed in {m.noticed for m in mutations}}
    for mutation in mutations:
        with tempfile.TemporaryDirectory() as made:
            problem = tried(mutation, Path(made)) if passing[mutation.noticed] else "its test fails even with it"
        if problem:
            unnoticed.append(f"{mutation.safeguard} ({problem})")
    result = f"FAILED: {'; '.join(unnoticed)}" if unnoticed else "ok"
    caught = len(mutations) - len(unnoticed)
    seconds = time.monotonic() - began
    print(
        f"{'safeguards disabled one at a time':<34} {caught:>9} noticed of {len(mutations)}, {seconds:.1f} s: {result}"
    )
    return unnoticed


def tried(mutation: Mutation, folder: Path) -> str:
    """What is wrong with the test of this safeguard; nothing if it fails without."""
    shutil.copytree(ROOT / "src" / "progfed", folder / "progfed", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "progfed" / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return f"{mutation.old!r} is there {text.count(mutation.old)} times"
    path.write_text(text.replace(mutation.old, mutation.new))
    return "" if _tests(folder, mutation.noticed) == 1 else "its test passes without it"


def _tests(folder: Path, noticed: tuple[str, str]) -> int:
    """The exit code of pytest: 0 all passed, 1 some failed."""
    file, name = noticed
    command = [sys.executable, "-m", "pytest", "-x", "-q", file, "-k", name]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


if __name__ == "__main__":
    named = [mutation for mutation in MUTATIONS if any(part in mutation.safeguard for part in sys.argv[1:])]
    sys.exit(bool(survivors(named or MUTATIONS)))
