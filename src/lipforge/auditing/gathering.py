"""From the shards of an audit to its report."""

from collections.abc import Mapping, Sequence
from typing import Any

from lipforge.auditing import checks
from lipforge.auditing.escalation import SIDES, black_box, clear, doubts, from_afar, left_by_non_adaptive, predicted
from lipforge.auditing.plan import BEFORE_GAIN, CLEAN, ESCALATION, FULL, NON_ADAPTIVE, Plan
from lipforge.auditing.verdict import Decision, among_others, decide, on_unseen
from lipforge.evaluation.robust import joined
from lipforge.results import MISCLASSIFIED, ROBUST, Note, merge_notes
from lipforge.results.audit import AuditNote, AuditReport, AuditRow, Check, Effort
from lipforge.results.evaluation import unreliable_notes
from lipforge.statistics import Comparison, paired


def gather(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    certified: Sequence[Check],
    about: Mapping[str, Any],
    stages: list[str],
    plan: Plan,
    others: Sequence[float] = (),
    chosen_on: Sequence[bool] = (),
) -> AuditReport:
    """The report that the shards of an audit make up; `about` are its fields that no shard knows, `others` the p-values
    of the other audits of the run, `certified` the checks of its certificates, and `chosen_on` says which images chose
    the ratio."""
    sides = {side: [shard[side] for shard in shards] for side in SIDES}
    base, candidate = (joined(sides[side], "outcome") for side in SIDES)
    clean, non_adaptive, union = comparisons(shards, stages)
    decision, notes = decision_of(shards, stages, plan, others), _notes(sides, len(base))
    decision = clear(decision, doubts(shards, measured, decision, same=same_function(shards)))
    decision = on_unseen(decision, sum(chosen_on[: len(base)]))
    stopped = _stopped(shards, stages, plan, others, decision, about["planned"])
    return AuditReport(
        verdict=decision.verdict,
        sentence=decision.sentence + stopped,
        images_needed=decision.images_needed,
        count=len(base),
        clean=clean,
        non_adaptive=non_adaptive,
        union=union,
        rows=_rows(base, candidate, stages, shards),
        checks=(
            *_checks(shards, measured, left_by_non_adaptive(shards), notes, stages),
            *certified,
        ),
        base_effort=_effort(sides["base"]),
        candidate_effort=_effort(sides["candidate"]),
        base_outcome=tuple(base),
        candidate_outcome=tuple(candidate),
        notes=notes,
        seconds=sum(shard["seconds"] for shard in shards),
        base_early_stopped=sum(side["always_early_stopped"] for side in sides["base"]),
        candidate_early_stopped=sum(side["always_early_stopped"] for side in sides["candidate"]),
        **about,
    )


def _stopped(
    shards: Sequence[Mapping[str, Any]],
    stages: list[str],
    plan: Plan,
    others: Sequence[float],
    decision: Decision,
    planned: int,
) -> str:
    """What the sentence says of an audit that stopped before its last image: where, and whether going on may help."""
    count = sum(len(shard["base"]["outcome"]) for shard in shards)
    of, left = f"after {count:,} of {planned:,} images", planned - count
    if not left:
        return ""
    if decision.verdict not in ("undecided", "unreliable"):
        return f"; decided {of}"
    if decision.verdict == "unreliable" or decision_of(shards, stages, plan, others).decided:
        return f"; stopped {of}"  # more images would not change why it claims nothing
    looked = decision_of(shards, [stage for stage in stages if stage not in ESCALATION], plan, others).verdict
    more = f"--all-images (stop_early=False) also attacks the other {left:,}"
    return f"; it stopped {of}, where it looked {looked}, and harder attacks then broke more; {more}"


def decision_of(
    shards: Sequence[Mapping[str, Any]], stages: list[str], plan: Plan, others: Sequence[float] = ()
) -> Decision:
    """The verdict on the images of these shards, the first of an audit; `others` are the run's other p-values."""
    _, non_adaptive, union = comparisons(shards, stages)
    return among_others(decide(union, non_adaptive, same=same_function(shards), margin=plan.margin), union, others)


def same_function(shards: Sequence[Mapping[str, Any]]) -> bool:
    """Whether both sides are the same function, as far as the shards show."""
    return all(shard["same"] for shard in shards)


def comparisons(shards: Sequence[Mapping[str, Any]], stages: list[str]) -> list[Comparison]:
    """Base and candidate on clean images, under the non-adaptive attack, and under the union of all `stages`."""
    base, candidate = (joined([shard[side] for shard in shards], "outcome") for side in SIDES)
    return [
        paired(_robust(base, upto), _robust(candidate, upto), anytime=True) for upto in ([], [NON_ADAPTIVE], stages)
    ]


def _checks(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    non_adaptive: list[bool],
    notes: Sequence[AuditNote],
    stages: Sequence[str],
) -> tuple[Check, ...]:
    counts = [shard["double"] for shard in shards]
    double = None if None in counts else {key: sum(count[key] for count in counts) for key in counts[0]}
    flags = [note.note for note in notes if (note.side, note.attack) == ("candidate", NON_ADAPTIVE)]
    condemned = unreliable_notes(flags, len(non_adaptive), sum(non_adaptive))
    return (
        *(checks.checklist(measured, non_adaptive, joined(shards, "transferred")) if measured is not None else ()),
        *(predicted([shard[side] for shard in shards], side) for side in SIDES),
        *((from_afar(shards),) if set(BEFORE_GAIN) & set(stages) else ()),
        *(black_box(shards, side) for side in SIDES if FULL in stages),
        checks.equal_effort([(*_spent(shard["base"]), *_spent(shard["candidate"])) for shard in shards]),
        checks.attack_flags(flags, condemned),
        checks.precision(double),
    )


def _rows(
    base: list[str], candidate: list[str], stages: list[str], shards: Sequence[Mapping[str, Any]]
) -> tuple[AuditRow, ...]:
    rows = []
    for last, name in enumerate([CLEAN, *stages]):
        left, right = (sum(_robust(outcome, stages[:last])) for outcome in (base, candidate))
        gradients = (sum(shard[side]["gradients"].get(name, 0) for shard in shards) for side in SIDES)
        stopped = (sum(len(shard[side]["early_stopped"].get(name, ())) for shard in shards) for side in SIDES)
        rows.append(AuditRow(name, left, right, (right - left) / len(base), *gradients, *stopped))
    return tuple(rows)


def _robust(outcome: Sequence[str], stages: Sequence[str]) -> list[bool]:
    """Which images are classified correctly and robust to these stages."""
    return [word == ROBUST or word not in (*stages, MISCLASSIFIED) for word in outcome]


def _effort(parts: Sequence[Mapping[str, Any]]) -> Effort:
    spent = [_spent(part) for part in parts]
    robust, total = sum(count for count, _ in spent), sum(count * mean for count, mean in spent)
    forwards, backwards = (
        sum(part["forwards"] for part in parts),
        sum(sum(part["gradients"].values()) for part in parts),
    )
    return Effort(forwards, backwards, total / robust if robust else 0.0)


def _spent(summary: Mapping[str, Any]) -> tuple[int, float]:
    """How many images of a shard are robust, and how many gradients each of them took on average."""
    pairs = zip(summary["backwards"], summary["outcome"], strict=True)
    found = [count for count, word in pairs if word == ROBUST]
    return len(found), sum(found) / len(found) if found else 0.0


def _notes(sides: Mapping[str, Sequence[Mapping[str, Any]]], total: int) -> tuple[AuditNote, ...]:
    """The notes of each attack on each side, added up over the shards, without their advice to run an audit."""
    notes: dict[tuple[str, str], list[Note]] = {}
    for side, parts in sides.items():
        for stage, note in joined(parts, "notes"):
            text = note["text"].partition("; run lipforge audit")[0]
            notes.setdefault((side, stage), []).append(Note(**(note | {"text": text})))
    return tuple(AuditNote(*where, note) for where, found in notes.items() for note in merge_notes(found, total))
