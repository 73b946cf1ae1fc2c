"""Checkpoints: whatever happens at whatever instant, the previous state or the new one loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from progfed import files
from progfed.errors import StorageError
from progfed.runs.checkpoint import Checkpoint, load, save


def made(number: int) -> Checkpoint:
    tensors = {"model": {"E1.w": torch.full((3,), float(number))}, "server": {}}
    return Checkpoint(number, tensors, {"note": f"round {number}"})


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    save(tmp_path, made(3))
    found = load(tmp_path)
    assert found is not None
    assert found.round == 3
    assert found.state["note"] == "round 3"
    assert torch.equal(found.tensors["model"]["E1.w"], torch.full((3,), 3.0))
    assert found.tensors["server"] == {}


def test_no_checkpoint_is_none_and_the_last_two_are_kept(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    for number in range(1, 6):
        save(tmp_path, made(number))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["round-00000004", "round-00000005"]


@pytest.mark.parametrize("file", ["model.safetensors", "server.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, file: str, damage: str) -> None:
    save(tmp_path, made(1))
    save(tmp_path, made(2))
    target = tmp_path / "round-00000002" / file
    data = bytearray(target.read_bytes())
    if damage == "remove":
        target.unlink()
    else:
        data[len(data) // 2] ^= 0x10
        target.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    found = load(tmp_path)
    assert found is not None
    assert found.round == 1


def test_when_every_checkpoint_is_damaged_the_error_says_so(tmp_path: Path) -> None:
    save(tmp_path, made(1))
    (tmp_path / "round-00000001" / "manifest.json").write_text("{}")
    with pytest.raises(StorageError, match=r"no checkpoint in .* can be read .*--fresh"):
        load(tmp_path)


def test_a_checkpoint_of_another_format_is_named(tmp_path: Path) -> None:
    save(tmp_path, made(1))
    manifest = tmp_path / "round-00000001" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 99}))
    with pytest.raises(StorageError, match="format 99, this version reads format 1"):
        load(tmp_path)


class Died(BaseException):
    """The process ends here."""


def interrupted(monkeypatch: pytest.MonkeyPatch, steps: int, action: Callable[[], None]) -> bool:
    """Run `action`, dying at its `steps`-th call into the file system; whether it died."""
    left = [steps]

    def counting(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if left[0] == 0:
                raise Died
            left[0] -= 1
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "rename", "replace"):
            patch.setattr(os, name, counting(getattr(os, name)))
        patch.setattr(shutil, "rmtree", counting(shutil.rmtree))
        try:
            action()
        except Died:
            return True
    return False


def test_death_at_any_step_of_saving_leaves_the_previous_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = 0
    for steps in range(40):
        root = tmp_path / str(steps)
        for number in (1, 2):
            save(root, made(number))
        died = interrupted(monkeypatch, steps, lambda root=root: save(root, made(3)))  # type: ignore[misc]
        deaths += died
        found = load(root)
        assert found is not None
        assert found.round in ((2, 3) if died else (3,))
        save(root, made(3))  # and the next attempt is not disturbed by the remains
        again = load(root)
        assert again is not None
        assert again.round == 3
    assert deaths >= 9


def test_a_replaced_file_has_the_old_content_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "summary.json"
    for steps in range(6):
        path.write_bytes(b"old")
        died = interrupted(monkeypatch, steps, lambda: files.replace_file(path, b"new"))
        assert path.read_bytes() in ((b"old", b"new") if died else (b"new",))
