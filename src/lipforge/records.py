"""Results as JSON, and files that are written whole or not at all."""

import dataclasses
import json
import os
import secrets
from pathlib import Path
from typing import Any

from lipforge.errors import InputError


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and paths as the dicts, lists and strings that JSON knows.

    >>> to_plain({"a": (1, 2)})
    {'a': [1, 2]}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def to_json(value: Any) -> str:
    """Indented JSON text; a NaN or an infinity is an error, because JSON has no word for it."""
    return json.dumps(to_plain(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


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


def write_whole(path: str | Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: temporary file, fsync, rename.

    A reader sees the old file or the new one; a crash or a full disk leaves the old one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not tempfile: its files are private, and this one should get the mode that an ordinary open() gives.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut, where the system can open directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
