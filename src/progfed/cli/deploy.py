"""`progfed deploy`: a Flower federation on this machine, to try what will later run on several."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from progfed.cli.options import Json
from progfed.errors import TrainingError, UsageError
from progfed.flower.federation.commands import app_settings
from progfed.flower.federation.federation import CONNECTION, Federation

app = typer.Typer(
    no_args_is_help=True, help="A Flower federation on this machine: TLS, authenticated nodes, state on disk."
)

Folder = Annotated[Path, typer.Option("--dir", help="Where keys, certificates, state and logs go.")]
HERE = Path("federation")


@app.command()
def up(
    nodes: Annotated[int, typer.Option(help="SuperNodes to start.", min=1)] = 3,
    folder: Folder = HERE,
    port: Annotated[int, typer.Option(help="The SuperLink's port; 0 chooses a free one.", min=0, max=65535)] = 0,
    data: Annotated[Path | None, typer.Option(help="The folder of data, of the nodes and of the server.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Flower's own node processes, unchanged and slower.")] = False,
    as_json: Json = False,
) -> None:
    """Start a SuperLink and SuperNodes, or those that have ended; keys and certificates are made at the first time."""
    port = Federation(folder, plain=plain).up(nodes, port=port, data=data)
    if as_json:
        print(json.dumps({"address": f"127.0.0.1:{port}", "nodes": nodes, "dir": str(folder.absolute())}))
        return
    print(f"{nodes} nodes are connected to 127.0.0.1:{port}; logs in {folder / 'logs'}")
    print(f"run an app:  progfed deploy run APP{_dir(folder)}")
    print(f"end it all:  progfed deploy down{_dir(folder)}")


@app.command()
def run(
    application: Annotated[Path, typer.Argument(metavar="APP", help="A Flower app, such as `progfed init` makes.")],
    folder: Folder = HERE,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the app: key=value; may be repeated.")
    ] = None,
) -> None:
    """Run an app on the federation and show its log; one that was interrupted goes on after its last round.

    Ctrl-C or SIGTERM stops the run; what its rounds have reached is saved.
    """
    federation = _running(folder)
    chosen = _chosen(application, settings or [], federation.data)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    number = ""
    try:
        number = _started(federation, application, chosen)
        log = [federation.commands.path("flwr"), "log", number, CONNECTION, "--stream"]
        subprocess.run(log, env=federation.commands.environment(), check=False)
        status = _status(federation, number)
    except KeyboardInterrupt:
        _stop(federation, number)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if status != "finished:completed":
        raise TrainingError(f"the run is {status}: its log is above; the same command continues it")


@app.command()
def status(folder: Folder = HERE, as_json: Json = False) -> None:
    """What runs, which nodes are connected, and which runs there were."""
    federation = Federation(folder)
    found: dict[str, Any] = {
        "processes": [
            {"name": process.name, "pid": process.pid, "port": process.port, "running": process.running}
            for process in federation.processes
        ],
        "nodes": [],
        "runs": [],
    }
    if federation.answering:
        found["nodes"] = federation.commands.listed("supernode", "list", CONNECTION)["nodes"]
        found["runs"] = federation.commands.listed("list", CONNECTION)["runs"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    if not found["processes"]:
        print(f"nothing runs in {folder}: `progfed deploy up{_dir(folder)}`")
        return
    _show(found)


@app.command()
def down(folder: Folder = HERE, as_json: Json = False) -> None:
    """End the federation. Keys, certificates, state and runs stay, and are used by the next `up`."""
    ended = Federation(folder).down()
    if as_json:
        print(json.dumps({"ended": ended}))
    else:
        print(f"{ended} processes ended" if ended else f"nothing runs in {folder}")


def _chosen(application: Path, settings: list[str], data: Path | None) -> dict[str, Any]:
    """The settings of an app that differ from its own: those of its user, and `data` from `deploy up --data`."""
    known = app_settings(application)
    chosen = dict(_setting(text) for text in settings)
    for key in chosen:
        if key not in known:
            raise UsageError(f"{application} has no setting {key!r}: it has {', '.join(known) or 'none'}")
    return {**({"data": str(data)} if data and "data" in known else {}), **chosen}


def _started(federation: Federation, application: Path, chosen: dict[str, Any]) -> str:
    """Start an app; returns the number of its run."""
    command = ["run", str(application), CONNECTION]
    if chosen:
        command += ["--run-config", " ".join(f"{key}={json.dumps(value)}" for key, value in chosen.items())]
    try:
        return str(federation.commands.listed(*command)["run-id"])
    except TrainingError as error:
        raise UsageError(f"{application} cannot be started: {error}") from error


def _status(federation: Federation, number: str) -> str:
    (run,) = federation.commands.listed("list", "--run-id", number, CONNECTION)["runs"]
    return str(run["status"])


def _stop(federation: Federation, number: str) -> None:
    """Stop the run on the SuperLink too; otherwise it would go on there and block its folder for the next run."""
    print("progfed: stopping the run", file=sys.stderr)
    which = ["--run-id", number] if number else ["--limit", "1"]  # started, but its number not yet read
    for run in federation.commands.listed("list", *which, CONNECTION)["runs"]:
        if run["status"] in ("pending", "starting", "running"):
            federation.commands.flwr("stop", str(run["run-id"]), CONNECTION)
    print("progfed: stopped; its rounds are saved, and the same command continues", file=sys.stderr)


def _running(folder: Path) -> Federation:
    federation = Federation(folder)
    if not federation.running:
        raise UsageError(f"no federation runs in {folder}: `progfed deploy up{_dir(folder)}` starts one")
    if not federation.answering:
        raise UsageError(f"the SuperLink in {folder} has ended: `progfed deploy up{_dir(folder)}` starts it again")
    return federation


def _dir(folder: Path) -> str:
    return "" if folder == HERE else f" --dir {folder}"


def _setting(text: str) -> tuple[str, Any]:
    """The name and the value of `key=value`; a value that is no number, truth value or quoted text is text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--set takes key=value, not {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _show(found: dict[str, Any]) -> None:
    console = Console()
    for title, rows, columns in (
        ("processes", found["processes"], ("name", "pid", "port", "running")),
        ("nodes", found["nodes"], ("node-id", "status", "online-at")),
        ("runs", found["runs"], ("run-id", "fab-name", "status", "elapsed")),
    ):
        table = Table(title=title, title_justify="left", box=None)
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(str(row.get(column, "")) for column in columns))
        console.print(table)
