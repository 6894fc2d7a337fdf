"""What a run directory says: a file that cannot be used is named and left out, never a reason to stop."""

import base64
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from lipforge.errors import InputError
from lipforge.records import check_inside, read_json
from lipforge.results import RESULTS, Gallery, RobustResult, from_record

PNG = b"\x89PNG\r\n\x1a\n"
EXTRA = ("third", "fourth", "fifth")
T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """All that a report takes from a run; `kinds` has files of unknown kinds too, `problems` says what was left out."""

    name: str
    results: dict[str, Any] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def of(self, result: type[T]) -> list[T]:
        return [found for found in self.results.values() if isinstance(found, result)]

    @property
    def evaluations(self) -> list[RobustResult]:
        return sorted(self.of(RobustResult), key=base_first)

    @contextmanager
    def leaving_out(self) -> Iterator[None]:
        """A file that cannot be used becomes one of the problems."""
        try:
            yield
        except InputError as error:
            self.problems.append(str(error))


def read_run(path: str | Path) -> Run:
    """The results of a run directory; an error only if there is no such directory or it holds no result at all."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"run must be a run directory, got {path}, which is not a folder")
    check_inside(path, "*", "results/*", "shards/*", "shards/*/config.json")
    files = sorted((path / "results").glob("*.json"))
    if not files:
        raise InputError(f"{path} holds no results (no {path / 'results'}/*.json); finish an evaluation in it first")
    run = Run(path.resolve().name)
    for file in files:
        with run.leaving_out():
            values = _object(file)
            if (result := _result(values, f"results/{file.name}")) is not None:
                run.results[file.stem] = result
            run.kinds[file.stem] = values["kind"]
    if (path / "environment.json").exists():
        with run.leaving_out():
            run.environment.update(_object(path / "environment.json"))
    for file in sorted(path.glob("shards/*/config.json")):
        with run.leaving_out():
            run.configs[file.parent.name] = _object(file)
    return run


def _result(values: dict[str, Any], where: str) -> Any:
    kind = values.get("kind")
    if isinstance(kind, str) and kind not in RESULTS:
        return None
    result = from_record(values, where)
    # What is no picture would go into the page as it is.
    for place, item in enumerate(result.items if isinstance(result, Gallery) else ()):
        for name in ("clean", "perturbation", "adversarial"):
            if not _is_png(getattr(item, name)):
                raise InputError(f"{where}: 'items' {place}: '{name}' must be a PNG in base64")
    return result


def _is_png(text: str) -> bool:
    try:
        return base64.b64decode(text, validate=True).startswith(PNG)
    except ValueError:
        return False


def _object(file: Path) -> dict[str, Any]:
    """The object in a file; errors name it by its folder, not by a path of this machine."""
    short = f"{file.parent.name}/{file.name}"
    try:
        values = read_json(file)
    except InputError as error:
        raise InputError(str(error).replace(str(file), short)) from None
    if not isinstance(values, dict):
        raise InputError(f"{short} must hold an object, got {type(values).__name__}")
    return values


def is_base(label: str) -> bool:
    return label.lower() in ("base", "plain", "original", "unforged")


def base_first(result: Any) -> tuple[bool, str]:
    """The key that sorts results by their labels, the base's first."""
    return not is_base(result.label), result.label


def grouped(results: Iterable[T], *fields: str) -> dict[Any, list[T]]:
    """Results that agree in these fields, together."""
    groups: dict[Any, list[T]] = defaultdict(list)
    for result in results:
        groups[attrgetter(*fields)(result)].append(result)
    return groups


def roles(labels: Iterable[str]) -> dict[str, str]:
    """The colour that each label keeps throughout a page: base and forged have their own, others get the rest.

    >>> roles(["forged", "other", "base"])
    {'forged': 'forged', 'other': 'third', 'base': 'base'}
    """
    labels = list(dict.fromkeys(labels))
    base = next((label for label in labels if is_base(label)), None)
    forged = next((label for label in labels if label.lower().startswith(("forged", "candidate"))), None)
    if base is None and forged is None and labels:
        base = labels[0]
    named, others = {base: "base", forged: "forged"}, cycle(EXTRA)
    return {label: named.get(label) or next(others) for label in labels}
