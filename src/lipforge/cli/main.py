"""`lipforge`: the commands, and what happens when one fails."""

import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, TextIO

from typer import Exit, Option, Typer

from lipforge.cli import data
from lipforge.cli.analyse import analyse
from lipforge.cli.audit import audit
from lipforge.cli.certify import certify
from lipforge.cli.demo import demo
from lipforge.cli.evaluate import evaluate
from lipforge.cli.forge import forge
from lipforge.cli.improve import improve
from lipforge.cli.output import note, notes
from lipforge.cli.report import report
from lipforge.cli.search import search
from lipforge.cli.sites import sites
from lipforge.cli.sweep import sweep
from lipforge.cli.train import train
from lipforge.cli.transfer import transfer
from lipforge.errors import InputError, LipforgeError
from lipforge.ranks import by_torchrun, leave
from lipforge.records import lipforge_version

WRONG_USE, BUG, INTERRUPTED = 2, 70, 130
PACKAGE = Path(__file__).parent.parent

COMMANDS = (demo, improve, sites, forge, search, sweep, transfer, audit, evaluate, train, report, certify, analyse)

RENAMED = {
    "--attack-seed": ("", "--seed"),
    "--push": ("transfer", "--refine"),
    "--step": ("train", "--step-size"),
    "--seed": ("forge", "--data-seed"),
}
"""Options that had another name, with their command ("" for every one) and their name now."""

app = Typer(
    name="lipforge",
    help="Forge a trained image classifier in one pass, and find out whether it really got harder to fool.",
    epilog="Exit codes: 0 done, 1 an audit says not real or harmful, 2 wrong use or bad input, 3 an audit is "
    "undecided, 4 it is unreliable, 70 a bug in lipforge, 130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _command in COMMANDS:
    app.command()(_command)
app.add_typer(data.app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(lipforge_version())
        raise Exit


@app.callback()
def _options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
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
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _check_renamed(arguments)
            app(arguments, prog_name="lipforge")
    except SystemExit as request:  # typer turns Ctrl-C into this exit code, without a word
        if request.code == INTERRUPTED:
            notes.print("Interrupted. Finished work is saved; run the same command to resume.")
        raise
    except (LipforgeError, OSError) as error:
        _explain(error, debug, WRONG_USE)
    except Exception as error:
        _explain(error, debug, BUG)


def _check_renamed(arguments: list[str]) -> None:
    for name in (argument.partition("=")[0] for argument in arguments):
        command, new = RENAMED.get(name, ("", ""))
        if new and command in ("", arguments[0]):
            raise InputError(f"there is no option {name}; it is called {new}")


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
        note(message)
    else:
        notes.print(warnings.formatwarning(message, category, filename, lineno, line), end="", soft_wrap=True)
