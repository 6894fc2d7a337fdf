"""`--config exp.toml`: options from a file. A table belongs to the command of its name, keys outside of tables to every
command that has such an option; a table wins over these, and the command line over both."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lipforge.errors import InputError, suggest


def read_config(path: str, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What the file sets: for each of `commands`, as typer makes them, by name, values by the name of the parameter."""
    content = {_spelled(key): value for key, value in _read(path).items()}
    known = {name: _parameters(command) for name, command in commands.items()}
    shared = {key: value for key, value in content.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    _check(f"{path}: no command", tables, known)
    _check(f"{path}: no command has an option", shared, {key for one in known.values() for key in one})
    found = {}
    for name, parameters in known.items():
        own = {_spelled(key): value for key, value in tables.get(name, {}).items()}
        _check(f"{path}: [{name}] has no option", own, parameters)
        given = {key: value for key, value in shared.items() if key in parameters} | own
        found[name] = {
            parameters[key].name: _value(f"{path}: {key}", parameters[key], value) for key, value in given.items()
        }
    return found


def _read(path: str) -> dict[str, Any]:
    if not path:
        raise InputError("--config must name a TOML file, got nothing")
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # what tomllib, a wrong encoding and deep nesting raise
        raise InputError(f"--config {path} is not valid TOML: {error}") from None


def _spelled(key: str) -> str:
    return key.replace("_", "-")


def _parameters(command: Any) -> dict[str, Any]:
    """The parameters of a command by the names that a file uses: an option's without dashes, an argument's own."""
    return {option.lstrip("-"): parameter for parameter in command.params for option in parameter.opts}


def _check(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{what} {name!r}{suggest(name, known)}")


def _value(where: str, parameter: Any, value: Any) -> Any:
    """The value as typer takes it; numbers as text, so that they are read as on the command line."""
    if getattr(parameter, "is_flag", False):
        if not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, got {value!r}")
        return value
    several = getattr(parameter, "multiple", False) or parameter.nargs == -1
    if isinstance(value, list) and not several:
        raise InputError(f"{where} takes one value, got a list")
    every = value if isinstance(value, list) else [value]
    for one in every:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise InputError(f"{where} must be a text or a number, got {one!r}")
    return [str(one) for one in every] if several else str(value)
