"""Makes the golden files of the current formats: a run when a format version is new, a message for every new codec.

No file is made again: what exists stays as it is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from progfed.codec import codec
from progfed.runs import checkpoint
from progfed.runs.checkpoint import to_bytes
from progfed.runs.train import train
from progfed.wire.message import VERSION, model_digest
from reliability import hostile
from reliability.cases import plain

GOLDEN = Path(__file__).parents[1] / "tests" / "reliability" / "golden"
ROUNDS = 5


def main() -> None:
    """Write a run that was stopped, a message of every codec that has none, and what both must be read as."""
    folder = GOLDEN / f"checkpoint-{checkpoint.FORMAT}-message-{VERSION}"
    if not folder.exists():
        (folder / "messages").mkdir(parents=True)
        stopped_run(folder)
    for name in hostile.CODECS:
        if not (folder / "messages" / f"{name}.message").exists():
            made = hostile.target(name)
            (folder / "messages" / f"{name}.message").write_bytes(made.message)
            (folder / "messages" / f"{name}.safetensors").write_bytes(to_bytes(made.opened(made.message)))


def stopped_run(folder: Path) -> None:
    """Write a run that was stopped, and what its checkpoint must be read as."""
    settings = {"up": codec("LQ-8"), "down": codec("LQ-8"), "feedback": True, "delta": True}
    for record in train(plain(**settings).experiment, folder / "run", data=folder, checkpoint_every=2):
        if record["round"] == ROUNDS:
            break
    (folder / "run" / ".lock").unlink()
    older = sorted((folder / "run" / "checkpoint").iterdir())[0]
    shutil.rmtree(older)
    found = checkpoint.load(folder / "run" / "checkpoint")
    assert found is not None
    expected = {"round": found.round, "files": {name: model_digest(ts).hex() for name, ts in found.tensors.items()}}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1))


if __name__ == "__main__":
    main()
