"""Run directories as evaluations leave them, with every kind of result."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from lipforge.records import to_builtins, write_json
from lipforge.results import FORMAT, Verdict, compare_brackets, compare_corrupted, compare_curves
from lipforge.runs import RunDir
from lipforge.statistics import compare
from tests.reports.results import (
    COUNT,
    NO_GRADIENT,
    analysis,
    audit,
    bracket,
    certificate,
    corrupt,
    curve,
    gallery,
    robust,
    search,
    sweep,
    transfer,
)


def full_run(path: Path, verdict: Verdict = "not real") -> Path:
    """A run directory with every kind of result."""
    base, forged = robust("base", (52, 16, 1, 0), 64), robust("forged", (44, 18, 1, 1), 63, seed=2)
    forged = replace(forged, notes=(NO_GRADIENT,))
    with RunDir.open(path) as run:
        run.task("base__autoattack__linf-8over255", {"attack": "autoattack", "seed": 0}, COUNT, 100)
        for name, result in (
            ("base__autoattack__linf-8over255", base),
            ("forged__autoattack__linf-8over255", forged),
            ("comparison", compare(base, forged)),
            ("search", search()),
            ("audit__linf-8over255", audit(verdict)),
            ("analysis", analysis()),
            ("certify__base", certificate("base", (61, 49, 38, 25, 14, 6, 2, 0))),
            ("certify__forged", certificate("forged", (60, 50, 38, 26, 13, 6, 2, 0))),
            ("sweep", sweep()),
            ("curve__base", curve("base")),
            ("curve__forged", curve("forged", 1.1)),
            ("curves__forged-against-base", compare_curves(curve("base"), curve("forged", 1.1))),
            ("bracket__base", bracket("base", 110)),
            ("bracket__forged", bracket("forged", 100)),
            ("brackets__forged-against-base", compare_brackets(bracket("base", 110), bracket("forged", 100))),
            ("corrupt__base", corrupt("base")),
            ("corrupt__forged", corrupt("forged", 4)),
            ("corrupted__forged-against-base", compare_corrupted(corrupt("base"), corrupt("forged", 4))),
            ("transfer__base-to-forged", transfer()),
            ("gallery", gallery()),
        ):
            run.write_result(name, result)
    return path


def write_values(path: Path, name: str, kind: str, values: Any) -> None:
    """A result of any content; `values` may be a dataclass."""
    write_json(path / "results" / f"{name}.json", {"kind": kind, "format": FORMAT, **to_builtins(values)})
