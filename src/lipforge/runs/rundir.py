"""A directory that holds one run: what identifies it, its shards, its results."""

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lipforge.errors import InputError, RunError, WriteError
from lipforge.logs import logger
from lipforge.ranks import is_first, is_helper
from lipforge.records import check_inside, read_json, sweep, to_builtins, write_json
from lipforge.results import FORMAT, OLDER, from_record, record
from lipforge.runs.identity import environment
from lipforge.runs.tasks import Complete, Task, check_shape, digest_of, held

DIGEST = re.compile(r"[0-9a-f]{64}")
DIGESTS = {
    "tensors": "weights",
    "printed": "layers",
    "settings": "settings of its layers",
    "sample": "images or labels",
    "content": "images or labels",
}
"""Of what the digests in an identity are."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")
PATIENCE = 10.0  # seconds to wait for a lock that is held for moments


@dataclass(frozen=True)
class RunDir:
    """A run on disk; several processes may use one at the same time, and the same calls again resume it.

    environment.json           versions, devices, command and options of every session: not part of the identity
    batch_size.json            the batch size that `auto` found
    shards/<task>/config.json  what identifies the task; a task of the same name and another config is refused
    shards/<task>/0003.json    one shard, written whole
    results/<name>.json        results, rebuilt from shards at any time
    """

    path: Path

    @classmethod
    def open(cls, path: str | Path, *, command: str | None = None, config: Mapping[str, Any] | None = None) -> "RunDir":
        """The run directory at `path`, made if it is not there; `command` is recorded as what made it, with `config`,
        all options that it had."""
        run = cls(Path(path))
        check_inside(run.path, "*", "results/*", "shards/*")
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            if is_first():
                sweep(run.path)
                run._note_environment({"command": command, "config": config})
        except WriteError:
            raise
        except OSError as error:
            raise RunError(f"{path} cannot be a run directory: {error.strerror}") from None
        return run

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held open: every file is written whole at once."""

    def task(
        self, name: str, config: Mapping[str, Any], count: int, size: int, *, complete: Complete | None = None
    ) -> Task:
        """The task of that name: `count` images in shards of `size`; another config than before is a RunError. A
        finished shard is computed again if `complete` says that something that belongs to it is missing."""
        check_shape(count, size)
        folder = self.path / "shards" / _checked(name)
        identity = to_builtins({"format": FORMAT, "config": dict(config), "count": count, "size": size})
        _write_once(folder / "config.json", identity)
        there = _read(folder / "config.json")  # even if it was written just now: another process may have been quicker
        if isinstance(there, dict) and there.get("format") != FORMAT:
            raise RunError(f"{folder} {OLDER.format(found=there.get('format', 1), format=FORMAT)}")
        if differences := _differences(there, identity):
            raise RunError(
                f"{folder} holds other work under the same name: {'; '.join(differences)}. "
                "Ask for the same again, or use another run directory"
            )
        return Task(name, count, size, digest_of(identity), folder, complete)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` gave the first time, kept in <name>.json: every later session and process gets the same."""
        path = self.path / f"{_checked(name)}.json"
        if not path.exists():
            _write_once(path, None if is_helper() else make())
        return _read(path)

    def shards(self) -> int:
        """How many shards have a file, of all tasks."""
        return sum(path.stem.isdecimal() for path in (self.path / "shards").glob("*/*.json"))

    def write_result(self, name: str, result: Any) -> Path:
        """Write a result dataclass to results/<name>.json, with its kind; gives the path."""
        path = self._result(name)
        write_json(path, record(result))
        logger.info("wrote %s", path)
        return path

    def read_result(self, name: str) -> Any:
        """The result in results/<name>.json."""
        path = self._result(name)
        return from_record(_read(path), str(path))

    def results(self) -> list[str]:
        """The names of all results, sorted."""
        return sorted(path.stem for path in (self.path / "results").glob("*.json"))

    def _result(self, name: str) -> Path:
        return self.path / "results" / f"{_checked(name)}.json"

    def _note_environment(self, origin: Mapping[str, Any]) -> None:
        path = self.path / "environment.json"
        now = environment() | to_builtins({key: value for key, value in origin.items() if value is not None})
        if now in _environments(path):
            return
        # Without the lock the worst is a session that is not recorded.
        with held(self.path / ".environment.lock", PATIENCE):
            before = _environments(path)
            if now not in before:
                write_json(path, {"environments": [*before, now]})


def open_task(
    run: RunDir | None, name: str, config: Mapping[str, Any], count: int, size: int, complete: Complete | None = None
) -> Task:
    """A task of `run`, or without a run one that lives in memory."""
    if run is not None:
        return run.task(name, config, count, size, complete=complete)
    check_shape(count, size)
    return Task(name, count, size, digest_of({"config": dict(config), "count": count, "size": size}), None, complete)


def _checked(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputError(f"a task or result name takes letters, digits and . _ = + -, got {name!r}")
    return name


def _read(path: Path) -> Any:
    try:
        return read_json(path)
    except InputError as error:
        raise RunError(f"{error}; delete it to start that part again") from None


def _write_once(path: Path, value: Any) -> None:
    """Write `value` unless there is a file already; of several processes at once exactly one writes, and no helper:
    what identifies a run is up to the process that it helps."""
    while is_helper() and not path.exists():
        time.sleep(0.05)
    if path.exists():
        return
    whole = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    write_json(whole, value)
    try:
        os.link(whole, path)
    except FileExistsError:
        pass
    except OSError:  # no hard links here: a gap of microseconds between looking and writing is left
        if not path.exists():
            os.replace(whole, path)
    finally:
        whole.unlink(missing_ok=True)


def _environments(path: Path) -> list[Any]:
    try:
        return list(read_json(path)["environments"])
    except (InputError, KeyError, TypeError):
        return []


def _differences(there: Any, asked: Any, where: str = "") -> list[str]:
    """What differs between two JSON values, one line per leaf; of digests, which nobody can read, only where."""
    if isinstance(there, dict) and isinstance(asked, dict):
        path = "" if where in ("", "config") else f"{where}."
        return [line for key in there | asked for line in _differences(there.get(key), asked.get(key), path + key)]
    if isinstance(there, list) and isinstance(asked, list) and len(there) == len(asked):
        pairs = zip(there, asked, strict=True)
        return [line for place, pair in enumerate(pairs) for line in _differences(*pair, f"{where}[{place}]")]
    if there == asked:
        return []
    digests = all(isinstance(value, str) and DIGEST.fullmatch(value) for value in (there, asked))
    if not digests:
        return [f"{'shard_size' if where == 'size' else where} was {there!r}, now {asked!r}"]
    owner, _, key = where.rpartition(".")
    return [f"{owner} has other {DIGESTS[key]}" if owner and key in DIGESTS else f"{where} differs"]
