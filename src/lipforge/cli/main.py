"""`lipforge`: the commands, and what happens when one fails."""

import sys
import traceback
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, TextIO

import torch
import typer

from lipforge.cli import (
    analyse,
    audit,
    certify,
    data,
    demo,
    evaluate,
    forge,
    report,
    search,
    sites,
    sweep,
    train,
    transfer,
)
from lipforge.cli.output import note, notes
from lipforge.errors import LipforgeError
from lipforge.ranks import by_torchrun, leave

WRONG_USE, BUG, INTERRUPTED = 2, 70, 130
PACKAGE = Path(__file__).parent.parent

app = typer.Typer(
    name="lipforge",
    help="Forge a trained image classifier in one pass, and find out honestly whether it got harder to fool.",
    epilog="Exit codes: 0 done, 1 an audit says not real or harmful, 2 wrong use or bad input, 3 an audit is "
    "undecided, 70 a bug in lipforge, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("sites")(sites.sites)
app.command("forge")(forge.forge)
app.command("search")(search.search)
app.command("sweep")(sweep.sweep)
app.command("transfer")(transfer.transfer)
app.command("audit")(audit.audit_command)
app.command("evaluate")(evaluate.evaluate_command)
app.command("train")(train.train_command)
app.command("report")(report.report)
app.command("certify")(certify.certify)
app.command("analyse")(analyse.analyse)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            print(version("lipforge"))
        except PackageNotFoundError:
            print("unknown: run from a source tree that was never installed")
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
    try:
        _run()
    except SystemExit as request:
        if by_torchrun():
            leave(request.code if isinstance(request.code, int) else int(request.code is not None))
        raise


def _run() -> None:
    debug = "--debug" in sys.argv
    # cuDNN may otherwise choose algorithms that add in another order each time.
    torch.backends.cudnn.deterministic = True
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(arguments, prog_name="lipforge")
    except SystemExit as request:  # typer turns Ctrl-C into this exit code, without a word
        if request.code == INTERRUPTED:
            notes.print("interrupted; what was written is whole, and the same command can be given again")
        raise
    except (LipforgeError, OSError) as error:
        _explain(error, debug, WRONG_USE)
    except Exception as error:
        _explain(error, debug, BUG)


def _explain(error: Exception, debug: bool, code: int) -> None:
    if debug:
        traceback.print_exc()
    note(str(error) or type(error).__name__, word="error", style="bold red")
    if code == BUG and not debug:
        notes.print(f"This is unexpected ({type(error).__name__}); --debug shows where it happened.")
    sys.exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are for the user, in one line; those of other packages keep saying where they come from."""
    if Path(filename).is_relative_to(PACKAGE):
        note(str(message))
    else:
        notes.print(warnings.formatwarning(message, category, filename, lineno, line), end="", soft_wrap=True)
