"""From the shards of an audit to its report."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.audit import checks
from lipforge.audit.plan import Plan
from lipforge.audit.report import AuditReport, AuditRow, Check, Effort
from lipforge.audit.stages import CLEAN, PLAIN, stage_names
from lipforge.audit.verdict import decide
from lipforge.evaluation.compare import paired

COUNTED = re.compile(r"(\d+) of (\d+)( images .*)", re.DOTALL)


def gather(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    about: Mapping[str, Any],
    plan: Plan,
    surrogates: list[str],
    certificates: Sequence[Mapping[str, Any]],
    models: Mapping[str, str],
) -> AuditReport:
    """The report of all shards; `certificates` are results of certify, `models` the digests of base and candidate."""
    base, candidate = (_joined(shards, side, "outcome") for side in ("base", "candidate"))
    stages = stage_names(surrogates, square=plan.square > 0)
    union, plain = (paired(_left(base, upto), _left(candidate, upto)) for upto in (stages, stages[:1]))
    decision = decide(union, plain, same=all(shard["same"] for shard in shards), margin=plan.margin)
    smoothing = checks.smoothing(certificates, models)
    found = (*_checks(shards, measured, _left(candidate, [PLAIN])), smoothing)
    failed = [check for check in found if check.passed is False]
    return AuditReport(
        verdict=decision.verdict,
        sentence=decision.sentence,
        doubts=tuple(f"{check.name}: no; {check.evidence}" for check in failed),
        images_needed=decision.images_needed,
        clean=paired(_left(base, []), _left(candidate, [])),
        plain=plain,
        union=union,
        rows=_rows(base, candidate, stages, shards),
        checks=found,
        base_effort=_effort(shards, "base"),
        candidate_effort=_effort(shards, "candidate"),
        base_outcome=tuple(base),
        candidate_outcome=tuple(candidate),
        notes=tuple(
            f"{side}, {stage}: {note}" for side in ("base", "candidate") for stage, note in _notes(shards, side)
        ),
        seconds=sum(shard["seconds"] for shard in shards),
        base_given_up=sum(shard["base"]["unpursued"] for shard in shards),
        candidate_given_up=sum(shard["candidate"]["unpursued"] for shard in shards),
        **about,
    )


def _checks(
    shards: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None, plain: list[bool]
) -> tuple[Check, ...]:
    transfer = [right for shard in shards for right in shard["transfer"]["candidate"]]
    counts = [shard["precision"] for shard in shards]
    precision = None if None in counts else {key: sum(count[key] for count in counts) for key in counts[0]}
    square = sum(shard["candidate"]["square"] for shard in shards)
    return (
        *(checks.checklist(measured, plain, transfer) if measured is not None else ()),
        checks.even_effort([(*_spent(shard["base"]), *_spent(shard["candidate"])) for shard in shards]),
        checks.autoattack_flags(
            [note for stage, note in _notes(shards, "candidate") if stage == PLAIN], square, len(plain)
        ),
        checks.precision(precision),
    )


def _rows(
    base: list[str], candidate: list[str], stages: list[str], shards: Sequence[Mapping[str, Any]]
) -> tuple[AuditRow, ...]:
    rows = []
    for last, name in enumerate([CLEAN, *stages]):
        left, right = (sum(_left(outcome, stages[:last])) for outcome in (base, candidate))
        counts = (
            sum(shard[side][key].get(name, 0) for shard in shards)
            for key in ("gradients", "given_up")
            for side in ("base", "candidate")
        )
        rows.append(AuditRow(name, left, right, (right - left) / len(base), *counts))
    return tuple(rows)


def _left(outcome: Sequence[str], stages: Sequence[str]) -> list[bool]:
    """Which images are right and stand after these stages."""
    return [word == ROBUST or word not in (*stages, MISCLASSIFIED) for word in outcome]


def _effort(shards: Sequence[Mapping[str, Any]], side: str) -> Effort:
    sheets = [shard[side] for shard in shards]
    spent = [_spent(sheet) for sheet in sheets]
    standing, total = sum(count for count, _ in spent), sum(count * mean for count, mean in spent)
    return Effort(
        sum(sheet["forwards"] for sheet in sheets),
        sum(_joined(shards, side, "backwards")),
        total / standing if standing else 0.0,
    )


def _spent(sheet: Mapping[str, Any]) -> tuple[int, float]:
    """How many images of a shard stand, and how many gradients each of them took on average."""
    pairs = zip(sheet["backwards"], sheet["outcome"], strict=True)
    found = [count for count, word in pairs if word == ROBUST]
    return len(found), sum(found) / len(found) if found else 0.0


def _notes(shards: Sequence[Mapping[str, Any]], side: str) -> list[tuple[str, str]]:
    """Stage and note, each once; notes of several shards that differ only in "n of m images" become one, added up."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for stage, note in _joined(shards, side, "notes"):
        counted = COUNTED.match(note)
        key = (stage, counted[3] if counted else note)
        part, whole = (int(counted[1]), int(counted[2])) if counted else (0, 0)
        before = found.get(key, (0, 0))
        found[key] = (before[0] + part, before[1] + whole)
    return [(stage, f"{part} of {whole}{note}" if whole else note) for (stage, note), (part, whole) in found.items()]


def _joined(shards: Sequence[Mapping[str, Any]], side: str, key: str) -> list[Any]:
    return [item for shard in shards for item in shard[side][key]]
