"""Files and messages of every released format are read for ever; `reliability/golden.py` made them when it was new."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from reliability.cases import plain
from safetensors.torch import load_file

from progfed.codec import codec
from progfed.runs import checkpoint
from progfed.runs.directory import RunDirectory, opened
from progfed.runs.identity import describe, identity
from progfed.runs.resume import resume
from progfed.wire.engine import ClientState
from progfed.wire.message import VERSION, model_digest
from reliability import hostile

GOLDEN = Path(__file__).parent / "golden"
FORMATS = sorted(GOLDEN.iterdir())


def test_the_current_formats_have_golden_files() -> None:
    assert (GOLDEN / f"checkpoint-{checkpoint.FORMAT}-message-{VERSION}").is_dir()


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_checkpoint_of_every_format_loads_to_the_same_bits(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    found = checkpoint.load(folder / "run" / "checkpoint")
    assert found is not None
    assert found.round == expected["round"]
    assert {name: model_digest(tensors).hex() for name, tensors in found.tensors.items()} == expected["files"]
    assert [record["round"] for record in RunDirectory(folder / "run").records()] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
def test_a_run_of_every_format_is_still_the_same_experiment_and_is_continued(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    made = plain(up=codec("LQ-8"), down=codec("LQ-8"), feedback=True, delta=True).experiment
    saved = checkpoint.load(tmp_path / "run" / "checkpoint")
    assert saved is not None
    # another version of torch is refused, and rightly: here the question is what the files say
    checkpoint.save(tmp_path / "run" / "checkpoint", saved_with(saved, torch=torch.__version__))
    client_states: dict[int, ClientState] = {}
    with opened(tmp_path / "run") as directory:
        directory.claim(describe(made))
        progress = resume(directory, identity(made), client_states)
    assert progress is not None
    assert progress.round == 5
    assert any("lost" in memory for memory in client_states.values())


def saved_with(saved: checkpoint.Checkpoint, **changes: object) -> checkpoint.Checkpoint:
    state = {key: value for key, value in saved.state.items() if key not in ("format", "round")}
    return checkpoint.Checkpoint(saved.round, saved.tensors, {**state, **changes})


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", hostile.CODECS)
def test_a_message_of_every_codec_and_version_is_read_to_the_same_bits(folder: Path, name: str) -> None:
    message = (folder / "messages" / f"{name}.message").read_bytes()
    found = hostile.target(name).opened(message)
    expected = load_file(folder / "messages" / f"{name}.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in found)
