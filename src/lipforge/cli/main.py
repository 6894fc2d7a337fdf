"""`lipforge`: the commands, and what happens when one fails."""

import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

from typer import BadParameter, Exit, Option, Typer
from typer.main import get_command
from typer.rich_utils import rich_format_error

from lipforge.allocator import keep_freed_memory
from lipforge.cli import data
from lipforge.cli.analyse import analyse
from lipforge.cli.audit import audit
from lipforge.cli.bracket import bracket
from lipforge.cli.certify import certify
from lipforge.cli.config import read_config
from lipforge.cli.corrupt import corrupt
from lipforge.cli.curve import curve
from lipforge.cli.demo import demo
from lipforge.cli.evaluate import evaluate
from lipforge.cli.export import export
from lipforge.cli.fold import fold
from lipforge.cli.forge import forge
from lipforge.cli.improve import improve
from lipforge.cli.models import models
from lipforge.cli.output import command, discard, errors, note, notes, print_json, quietly
from lipforge.cli.processes import end_with_parent
from lipforge.cli.report import report
from lipforge.cli.reproduce import reproduce
from lipforge.cli.search import search
from lipforge.cli.sites import sites
from lipforge.cli.sweep import sweep
from lipforge.cli.train import train
from lipforge.cli.transfer import transfer
from lipforge.errors import InputError, LipforgeError, MemoryLimitError, lacks_memory
from lipforge.ranks import by_torchrun, is_first, leave
from lipforge.records import lipforge_version

WRONG_USE, BUG, INTERRUPTED = 2, 70, 130
PACKAGE = Path(__file__).parent.parent
USAGE_ERROR: Any = BadParameter.__base__  # of click, which typer brings along or imports, depending on its version

COMMANDS = (
    demo, models, improve, sites, forge, fold, search, sweep, transfer, audit, evaluate, curve, corrupt, export, train,
    report, certify, bracket, analyse, reproduce,
)  # fmt: skip

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
    "undecided, 4 it or a robust accuracy is unreliable, 70 a bug in lipforge, 130 interrupted.",
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
    config: Annotated[
        str | None, Option("--config", metavar="FILE", help="Take options from this TOML file; see docs/cli.md.")
    ] = None,
    quiet: Annotated[bool, Option("--quiet", help="No progress and no notes on stderr; errors stay.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command, which `_Call` takes out before or after its name."""


@dataclass(frozen=True)
class _Call:
    """What was asked for: the arguments without the options of every command, and these."""

    arguments: list[str]
    config: str | None
    quiet: bool
    debug: bool

    @classmethod
    def read(cls, given: Sequence[str]) -> "_Call":
        arguments, config, words = [], None, iter(given)
        for word in words:
            if word == "--config" or word.startswith("--config="):
                config = word.partition("=")[2] or next(words, "")
            elif word not in ("--quiet", "--debug"):
                arguments.append(word)
        return cls(arguments, config, "--quiet" in given, "--debug" in given)

    @property
    def command(self) -> str:
        """The command, with that of its group, such as "data list"; what was given instead if there is none."""
        return " ".join(self.arguments[: 2 if self.arguments[:1] == ["data"] else 1])


def start() -> None:
    """Run the command line in a process of its own: what it sets for the whole process is nobody else's."""
    keep_freed_memory()
    end_with_parent()
    main()


def main() -> None:
    """Run the command line; errors become one line on stderr, under --json an object on stdout, and an exit code."""
    try:
        _run()
    except SystemExit as request:
        if by_torchrun():
            leave(request.code if isinstance(request.code, int) else int(request.code is not None))
        raise


def _run() -> None:
    call = _Call.read(sys.argv[1:])
    name = command.set(call.command)
    try:
        with quietly(call.quiet), warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _end(call)
    finally:
        command.reset(name)


def _end(call: _Call) -> NoReturn:
    """Run the command and exit as it ends."""
    json, group = "--json" in call.arguments, get_command(app)
    try:
        _check_renamed(call.arguments)
        defaults = {} if call.config is None else read_config(call.config, _commands(group))
        json = json or bool(defaults.get(call.command, {}).get("json"))
        code = group(call.arguments, prog_name="lipforge", standalone_mode=False, default_map=_nested(defaults))
    except SystemExit as request:
        if not isinstance(request.__context__, BrokenPipeError):
            raise
        discard(sys.stdout)  # nobody reads the help any more
        sys.exit(0)
    except USAGE_ERROR as error:
        rich_format_error(error)
        code = error.exit_code
        _print_error(json, error, error.format_message(), code)
    except (LipforgeError, OSError) as error:
        code = _explain(error, call.debug, WRONG_USE, json)
    except Exception as error:
        code = _explain(error, call.debug, WRONG_USE if lacks_memory(error) else BUG, json)
    if code == INTERRUPTED:  # typer turns Ctrl-C into this exit code, without a word
        kept = any(one.split("=")[0] == "--run" for one in call.arguments) or call.command in ("demo", "train")
        saved, lost = (
            "Finished work is saved; run the same command to resume.",
            "Nothing was saved: there was no --run.",
        )
        text = f"Interrupted. {saved if kept else lost}"
        errors.print(text)
        _print_error(json, KeyboardInterrupt(), text, code)
    sys.exit(code or 0)


def _commands(group: Any) -> dict[str, Any]:
    """All commands by their full name."""
    found: dict[str, Any] = {}
    for name, one in group.commands.items():
        inner = getattr(one, "commands", None)
        found |= {name: one} if inner is None else {f"{name} {part}": each for part, each in inner.items()}
    return found


def _nested(defaults: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Values by command as typer takes them: those of "data list" under "data"."""
    found: dict[str, Any] = {}
    for name, values in defaults.items():
        outer, _, inner = name.partition(" ")
        found[outer] = found.get(outer, {}) | {inner: values} if inner else values
    return found


def _check_renamed(arguments: list[str]) -> None:
    for name in (argument.partition("=")[0] for argument in arguments):
        command, new = RENAMED.get(name, ("", ""))
        if new and command in ("", arguments[0]):
            raise InputError(f"there is no option {name}; it is called {new}")


def _explain(error: Exception, debug: bool, code: int, json: bool) -> int:
    """Say what went wrong; gives the exit code."""
    text = str(error) or type(error).__name__
    if lacks_memory(error) and not isinstance(error, MemoryLimitError):
        text = (
            f"out of memory ({text.splitlines()[0][:200]}); finished work is saved. Resume by the same command with "
            "more memory, or start anew with smaller --batch-size and --shard-size"
        )
    if debug:
        traceback.print_exc()
    note(text, word="error", style="bold red", console=errors)
    if code == BUG and not debug:
        errors.print(f"This is unexpected ({type(error).__name__}); --debug shows where it happened.")
    _print_error(json, error, text, code)
    return code


def _print_error(json: bool, error: BaseException, text: str, code: int) -> None:
    if json and is_first():
        print_json("error", [], error={"message": text, "exit_code": code, "type": type(error).__name__})


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
