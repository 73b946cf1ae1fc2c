"""Makes the golden files of the current formats; run once when a format version is new, never for an old one."""

from __future__ import annotations

import json
import shutil
import sys
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
    """Write a run that was stopped, a message of every codec, and what both must be read as."""
    folder = GOLDEN / f"checkpoint-{checkpoint.FORMAT}-message-{VERSION}"
    if folder.exists():
        sys.exit(f"{folder} exists: golden files are never made again")
    (folder / "messages").mkdir(parents=True)
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
    for name in hostile.CODECS:
        made = hostile.target(name)
        (folder / "messages" / f"{name}.message").write_bytes(made.message)
        (folder / "messages" / f"{name}.safetensors").write_bytes(to_bytes(made.opened(made.message)))


if __name__ == "__main__":
    main()
