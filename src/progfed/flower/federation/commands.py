"""Flower's own commands as a federation on this machine runs them: with its own settings only."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from progfed.errors import TrainingError, UsageError


@dataclass(frozen=True)
class Commands:
    """Flower's commands, with their settings in the folder `home`; its servers look for work every `poll` seconds."""

    home: Path
    poll: float

    def environment(self) -> dict[str, str]:
        """The environment of every Flower command: no telemetry, nothing installed at run time, settings in `home`."""
        ours = {
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(self.poll),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        return {**os.environ, **ours}

    def path(self, name: str) -> str:
        """The path of a command."""
        path = Path(sys.executable).parent / name
        if not path.exists():
            raise UsageError(f"there is no command {name} next to {sys.executable}: install progfed[flower]")
        return str(path)

    def flwr(self, *arguments: str) -> str:
        """Run a `flwr` command and return what it prints; one that fails is an error with what it said."""
        return self._done(f"flwr {shlex.join(arguments)}", [self.path("flwr"), *arguments])

    def several(self, commands: list[list[str]]) -> None:
        """Run several `flwr` commands in one process: each start takes seconds."""
        lines = "\n".join(shlex.join(command) for command in commands)
        self._done(f"flwr {lines.splitlines()[0]}", script("commands"), lines)

    def listed(self, *arguments: str) -> dict[str, Any]:
        """Run a `flwr` command that lists something, and return it as values."""
        text = self.flwr(*arguments, "--format", "json")
        found: dict[str, Any] = json.loads(text[text.index("{") :])
        if not found.get("success", True):
            said = str(found.get("error-message", found)).strip().splitlines()
            raise TrainingError(f"`flwr {arguments[0]}` says: {said[-1] if said else found}")
        return found

    def _done(self, what: str, command: list[str], lines: str = "") -> str:
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, input=lines)
        if done.returncode:
            raise TrainingError(f"`{what}` failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout


def app_settings(application: Path) -> list[str]:
    """The names of the settings of a Flower app, those in a table as `table.name`."""
    described = application / "pyproject.toml"
    if not described.is_file():
        raise UsageError(f"{application} is no Flower app: `progfed init {application}` makes one")
    try:
        table: Any = tomllib.loads(described.read_text())
        for name in ("tool", "flwr", "app", "config"):
            table = table.get(name, {})
        return list(_names(table))
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"{described} cannot be read: {error}") from error


def _names(table: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _names(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def script(name: str) -> list[str]:
    """The command that runs a module of this package by its path: so it does not load torch, which it does not need."""
    return [sys.executable, "-P", str(files("progfed.flower") / f"{name}.py")]
