"""The commands: the only place that prints or parses arguments."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from progfed import __version__
from progfed.cli import analyse, data, deploy, export, init, inspect, plan, report, run, selftest
from progfed.errors import ProgfedError, StorageError, printable

EXIT_CODES = (
    "Exit codes: 0 done; 1 unexpected error; 2 wrong option, experiment or model; 3 data missing or damaged; "
    "4 training cannot go on; 5 folder not usable; 130 interrupted: the same command continues."
)


class _PlainHelp:
    """Help texts without the backslash that Typer puts before brackets for a markup that is not used here."""

    def get_help(self, context: Any) -> str:
        text: str = super().get_help(context)  # type: ignore[misc]
        return text.replace("\\[", "[")


class _Command(_PlainHelp, TyperCommand):
    pass


class _Group(_PlainHelp, TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
    name="progfed",
    help="Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(run.demo)
app.command(name="list")(plan.list_experiments)
app.command()(plan.plan)
app.command()(inspect.inspect)
app.command()(run.run)
app.command()(report.report)
app.command()(export.export)
app.command()(analyse.analyse)
app.command()(analyse.theorem)
app.command()(selftest.selftest)
app.add_typer(data.app, name="data")
app.command()(init.init)
app.add_typer(deploy.app, name="deploy")
for below in (data.app, deploy.app):
    below.info.cls = _Group
for command in (*app.registered_commands, *data.app.registered_commands, *deploy.app.registered_commands):
    command.cls = _Command


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs."""
    if show:
        print(f"progfed {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake is one line on standard error and an exit code, never a traceback."""
    try:
        app()
    except ProgfedError as error:
        print(f"progfed: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"progfed: {printable(str(error.filename))} cannot be used: {error.strerror}", file=sys.stderr)
        sys.exit(StorageError.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
