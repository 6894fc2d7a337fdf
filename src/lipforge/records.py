"""Dataclasses to JSON and back, and files that are written whole or not at all."""

import dataclasses
import json
import os
import secrets
import time
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from lipforge.errors import InputError, WriteError

T = TypeVar("T")

Share = Annotated[float, (0, 1)]
"""A number between these limits; a result that says otherwise is damaged."""

ABANDONED = 3600.0  # seconds after which a half-written file is nobody's where no lock tells: writing takes moments

UNPACKED = 32 << 20  # bytes that any file may unpack to, however small it is

LARGEST = 1e100  # what is larger in a result is damage: its sums and products would overflow


def to_builtins(value: Any) -> Any:
    """Dataclasses, tuples and paths as the dicts, lists and strings that JSON knows.

    >>> to_builtins({"a": (1, 2)})
    {'a': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_builtins(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_builtins(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtins(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def from_builtins(kind: type[T], values: Any, where: str) -> T:
    """The dataclass `kind` from what `to_builtins` made of it, every field checked against its annotation. Fields that
    are missing take their default, unknown ones are ignored. An error begins with `where`."""
    if not isinstance(values, dict):
        raise InputError(f"{where} must be an object, got {_shown(values)}")
    hints = typing.get_type_hints(kind, include_extras=True)
    found = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # callers pass dataclasses
        if field.name in values:
            found[field.name] = _read(hints[field.name], values[field.name], f"{where}: '{field.name}'")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise InputError(f"{where}: '{field.name}' is missing")
    return kind(**found)


def _read(hint: Any, value: Any, where: str) -> Any:
    """`value` as its annotation has it: tuples for lists, dataclasses for objects, everything else as it is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _read_any(arguments, value, where)
    if origin is Annotated:
        return _read_within(arguments[0], arguments[1], value, where)
    if dataclasses.is_dataclass(hint):
        return from_builtins(typing.cast(type[Any], hint), value, where)
    if origin is tuple and isinstance(value, list):
        kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else arguments
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple(_read(kind, item, f"{where} {place}") for place, (kind, item) in pairs)
    elif origin in (dict, Mapping) and isinstance(value, dict):
        return {key: _read(arguments[1], item, f"{where} '{key}'") for key, item in value.items()}
    elif origin is Literal and value in arguments:
        return value
    elif hint in (float, int) and not isinstance(value, bool) and isinstance(value, int | float):
        if abs(value) > LARGEST:
            raise InputError(f"{where} must be a number, got {_shown(value)}; the largest allowed is {LARGEST:g}")
        if value == value and (hint is float or value == int(value)):  # NaN differs from itself
            return hint(value)
    elif hint is Any or (hint in (str, bool, types.NoneType) and isinstance(value, hint)):
        return value
    raise InputError(f"{where} must be {_named(hint)}, got {_shown(value)}")


def _read_any(hints: tuple[Any, ...], value: Any, where: str) -> Any:
    """`value` as the first annotation that takes it, null last; the error is that of the first one."""
    errors = []
    for hint in sorted(hints, key=lambda hint: hint is types.NoneType):
        try:
            return _read(hint, value, where)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _read_within(hint: Any, limits: tuple[float, float], value: Any, where: str) -> Any:
    number = _read(hint, value, where)
    if limits[0] <= number <= limits[1]:
        return number
    raise InputError(f"{where} must lie in [{limits[0]}, {limits[1]}], got {_shown(value)}")


def _named(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", types.NoneType: "null"}
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        return f"a list, each item {_named(kinds[0])}" if kinds[-1] is Ellipsis else f"a list of {len(kinds)} values"
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return names.get(hint, "an object")


def _shown(value: Any) -> str:
    return repr(str(value)[:60])


def to_json(value: Any) -> str:
    """Indented JSON text; a NaN or an infinity is an error, because JSON has no word for it."""
    text = json.dumps(to_builtins(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    # Half a surrogate pair, as in a file name that is no UTF-8, cannot be encoded; its escape is JSON's own.
    return text.encode(errors="backslashreplace").decode()


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON, whole or not at all."""
    write_whole(path, to_json(value).encode())


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; damage is reported with the file's name."""
    path = Path(path)
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"no file {path}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); was it cut short?") from None


def most_unpacked(size: int) -> int:
    """Bytes that a packed file of so many bytes may unpack to: images shrink to a tenth, bombs to a thousandth."""
    return max(UNPACKED, 32 * size)


def write_whole(path: str | Path, content: bytes) -> None:
    """Replace `path` by `content` in one step (temporary file, fsync, rename): a reader sees the old file or the new
    one, and a crash or a full disk leaves the old one. A file that cannot be written is a WriteError."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile: its files are private, and this one should get the mode that an ordinary open() gives.
        _write(path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part"), content, path)
        _sync_directory(path.parent)
    except OSError as error:
        raise WriteError(
            f"{path} cannot be written ({error.strerror}); make room there or name another folder. What was finished "
            "before is kept"
        ) from None


def _write(temporary: Path, content: bytes, path: Path) -> None:
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_inside(folder: Path, *patterns: str) -> None:
    """Raise if a link below `folder` leads out of it: a directory from someone else could name any file of yours."""
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise InputError(f"{path} is a link that leads out of {folder}, to {path.resolve()}; copy the file there")


def sweep(folder: Path) -> None:
    """Remove what killed processes left half-written below `folder`, once it is too old to be in the making."""
    for left in folder.rglob(".*.part"):
        with suppress(OSError):  # another process was quicker, or the folder takes no changes
            if time.time() - left.stat().st_mtime > ABANDONED:
                left.unlink()


def _sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut, where the system can open directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lipforge_version() -> str:
    """The installed version of lipforge, or "unknown" in a source tree that was never installed."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as a tenth of --help

    try:
        return version("lipforge")
    except PackageNotFoundError:
        return "unknown"
