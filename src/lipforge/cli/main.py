"""`lipforge`: the commands, and what happens when one fails."""

import sys
import traceback
from importlib.metadata import version
from typing import Annotated

import click
import typer
from rich.markup import escape

from lipforge.cli import data, demo, forge, sites, train
from lipforge.cli.output import notes
from lipforge.errors import LipforgeError

WRONG_USE, BUG, INTERRUPTED = 2, 70, 130

app = typer.Typer(
    name="lipforge",
    help="Forge a trained image classifier in one pass, and find out honestly whether it got harder to fool.",
    epilog="Exit codes: 0 done, 2 wrong use or bad input, 70 a bug in lipforge, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("sites")(sites.sites)
app.command("forge")(forge.forge)
app.command("train")(train.train_command)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version("lipforge"))
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""


def main() -> None:
    """Run the command line; errors become one line on stderr and an exit code."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        sys.exit(app(arguments, standalone_mode=False) or 0)
    except click.exceptions.Exit as exit_request:
        sys.exit(exit_request.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(WRONG_USE)
    except (KeyboardInterrupt, click.Abort):
        notes.print("interrupted; what was written is whole, and the same command starts again")
        sys.exit(INTERRUPTED)
    except (LipforgeError, OSError) as error:
        _explain(error, debug, WRONG_USE)
    except Exception as error:
        _explain(error, debug, BUG)


def _explain(error: Exception, debug: bool, code: int) -> None:
    if debug:
        traceback.print_exc()
    notes.print(f"[bold red]error:[/] {_escape(error)}", soft_wrap=True)
    if code == BUG and not debug:
        notes.print(f"This looks like a bug ({type(error).__name__}); --debug shows where it happened.")
    sys.exit(code)


def _escape(error: Exception) -> str:
    return escape(str(error)) or type(error).__name__
