"""What a run directory says, read with suspicion: a damaged file is named and set aside, never a reason to stop."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lipforge.errors import InputError
from lipforge.records import read_json

FORMAT = 1
T = TypeVar("T")


class DamageError(InputError):
    """A result that is not what its kind promises; the message names the file and the field."""


@dataclass(frozen=True)
class Fields:
    """One JSON object of a result file, whose fields are checked as they are read."""

    values: dict[str, Any]
    where: str

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(name, "a number")
        return value

    def whole(self, name: str) -> int:
        """A whole number."""
        value = self.number(name)
        if value != int(value):
            raise self._wrong(name, "a whole number")
        return int(value)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; `default` where there is none."""
        value = self.values.get(name, default)
        if value is None and default is not None:
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def interval(self, name: str) -> tuple[float, float]:
        """Two numbers, the lower one first."""
        value = self.values.get(name)
        if not (isinstance(value, list) and len(value) == 2):
            raise self._wrong(name, "two numbers")
        both = Fields({"low": value[0], "high": value[1]}, f"{self.where}, '{name}'")
        return both.number("low"), both.number("high")

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty where the field is missing."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return tuple(value)

    def each(self, name: str) -> "list[Fields]":
        """The objects of a list; empty where the field is missing."""
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(name, "a list of objects")
        return [Fields(item, f"{self.where}, '{name}' {place}") for place, item in enumerate(value)]

    def inner(self, name: str) -> "Fields":
        """An object inside this one."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return Fields(value, f"{self.where}, '{name}'")

    def has(self, *names: str) -> bool:
        """Whether all of these fields are there and not null."""
        return all(self.values.get(name) is not None for name in names)

    def optional(self, name: str) -> float | None:
        """A number, or None where there is none."""
        return self.number(name) if self.has(name) else None

    def _wrong(self, name: str, expected: str) -> DamageError:
        found = f"got {str(self.values[name])[:60]!r}" if name in self.values else "it is missing"
        return DamageError(f"{self.where}: '{name}' must be {expected}, {found}")


@dataclass(frozen=True)
class Result:
    """One file of results: its name without .json, what it is, and its fields."""

    name: str
    kind: str
    fields: Fields


@dataclass(frozen=True)
class Run:
    """All that a report takes from a run directory. `problems` grows while results are parsed."""

    path: Path
    name: str
    results: tuple[Result, ...]
    environment: dict[str, Any]
    configs: dict[str, dict[str, Any]]
    problems: list[str]

    def parsed(self, kind: str, parse: Callable[[Fields], T]) -> list[T]:
        """Every result of this kind; one that cannot be parsed goes to `problems`."""
        return [item for result in self.results if result.kind == kind for item in self.attempt(result, parse)]

    def attempt(self, result: Result, parse: Callable[[Fields], T]) -> list[T]:
        """One result, or none if it cannot be parsed, which goes to `problems`."""
        try:
            return [parse(result.fields)]
        except DamageError as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))
            return []


def read_run(path: str | Path) -> Run:
    """The results of a run directory; an error only if there is no such directory or it holds no result at all."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"run must be a run directory, got {path}, which is not a folder")
    files = sorted((path / "results").glob("*.json"))
    if not files:
        raise InputError(f"{path} holds no results (no {path / 'results'}/*.json); finish an evaluation in it first")
    problems: list[str] = []
    results = tuple(result for file in files if (result := _result(file, problems)) is not None)
    environment = _object(path / "environment.json", problems) if (path / "environment.json").exists() else None
    configs = {file.parent.name: _object(file, problems) for file in sorted(path.glob("shards/*/config.json"))}
    return Run(
        path=path,
        name=path.resolve().name,
        results=results,
        environment=environment or {},
        configs={task: config for task, config in configs.items() if config is not None},
        problems=problems,
    )


def _result(file: Path, problems: list[str]) -> Result | None:
    values = _object(file, problems)
    if values is None:
        return None
    kind, where = values.get("kind"), f"results/{file.name}"
    if not isinstance(kind, str):
        problems.append(f"{where} has no 'kind' and is left out")
        return None
    if values.get("format", FORMAT) != FORMAT:
        problems.append(f"{where} has the format {values['format']!r}; this version reads {FORMAT}, so it is left out")
        return None
    return Result(file.stem, kind, Fields(values, where))


def _object(file: Path, problems: list[str]) -> dict[str, Any] | None:
    try:
        values = read_json(file)
    except InputError as error:
        problems.append(str(error).replace(str(file.parent) + "/", f"{file.parent.name}/"))
        return None
    if not isinstance(values, dict):
        problems.append(f"{file.parent.name}/{file.name} must hold an object, got {type(values).__name__}")
        return None
    return values
