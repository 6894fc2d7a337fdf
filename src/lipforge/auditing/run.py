"""The audit: every attack on both sides, the checklist, and one verdict."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict, Unpack, overload

from torch import Tensor, nn

from lipforge.attacks import attack_text
from lipforge.auditing import checks
from lipforge.auditing.attacks import attack_shard
from lipforge.auditing.pairs import Pair, classes_of, forged_pair, pair_of
from lipforge.auditing.plan import CLEAN, NON_ADAPTIVE, OWN, TRANSFERRED, Plan, audit_plan, stage_names
from lipforge.auditing.verdict import decide
from lipforge.batching import ImageData, as_data
from lipforge.errors import InputError, LipforgeError
from lipforge.evaluation.robust import joined, prepared_once, setting_of
from lipforge.results import MISCLASSIFIED, ROBUST, CertifyResult, Note, merge_notes
from lipforge.results.audit import AuditNote, AuditReport, AuditRow, Check, Effort
from lipforge.runs import Experiment, RunDir, Shard, Watch, digest_of
from lipforge.runs.identity import model_identity
from lipforge.statistics import paired
from lipforge.types import Classifier, Threat

Data = ImageData | tuple[Tensor, Tensor]

SIDES = ("base", "candidate")


class Options(TypedDict, total=False):
    """What both forms of `audit` take by name."""

    plan: Plan | None
    run: RunDir | None
    name: str
    identity: Mapping[str, Any] | None
    show_progress: bool | None


class PairOptions(Options, total=False):
    surrogates: Mapping[str, Classifier] | None


@overload
def audit(model: nn.Module, data: Data, threat: Threat, /, **options: Unpack[Options]) -> AuditReport: ...
@overload
def audit(
    base: Classifier, candidate: Classifier, data: Data, threat: Threat, /, **options: Unpack[PairOptions]
) -> AuditReport: ...


def audit(
    *subject: Any,
    surrogates: Mapping[str, Classifier] | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    identity: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> AuditReport:
    """Whether a candidate is harder to fool than its base: one verdict, with the attacks and checks it rests on.

    `audit(model, data, threat)` compares a forged model with itself without forged functions; its BPDA views come by
    themselves. `audit(base, candidate, data, threat)` takes any two classifiers; `surrogates` are classifiers whose
    gradients might get past a defence of the candidate. Both sides face the same attacks, images and random starts.
    With `run` every shard is kept: the same call again resumes, and torchrun's ranks share the work. `identity` adds
    what a resumed call must agree on; a classifier or surrogate that is no module needs it.
    """
    pair, data, threat = _subject(subject, surrogates)
    data = as_data(data)
    plan = plan if plan is not None else audit_plan(classes=classes_of(pair.base.classifier, data))
    unknown = [name for name, classifier in _classifiers(pair).items() if not isinstance(classifier, nn.Module)]
    if run is not None and unknown and not identity:  # a function has only its name
        raise InputError(
            f"identity must say what a classifier that is no module is, such as {{{unknown[0]!r}: 'mine-v2'}}, "
            f"so that a run is not resumed with another; it is needed for {', '.join(unknown)}"
        )
    models, size = (pair.candidate.classifier, pair.base.classifier), plan.shard_size
    experiment = Experiment.open(
        data, *models, run=run, shard_size=size, identity=identity, show_progress=show_progress
    )
    shards, measured = _attack(experiment, pair, threat, plan), _measure(experiment, pair, threat, plan)
    about = setting_of(experiment, plan.non_adaptive, threat, plan.seed)
    about |= {"model": name, "count": len(data), "non_adaptive_attack": about.pop("attack"), "margin": plan.margin}
    report = gather(shards, measured, _smoothing_check(pair, run), about, list(pair.candidate.views), plan)
    return experiment.finish(f"audit__{_slug(threat)}", report)


def _subject(subject: Sequence[Any], surrogates: Mapping[str, Classifier] | None) -> tuple[Pair, Any, Threat]:
    if len(subject) not in (3, 4) or not isinstance(subject[-1], Threat):
        raise InputError("audit takes (model, data, threat) or (base, candidate, data, threat), the last a Threat")
    if len(subject) == 4:
        return pair_of(subject[0], subject[1], surrogates), subject[2], subject[3]
    if surrogates is not None:
        raise InputError("surrogates are for audit(base, candidate, data, threat); a forged model brings its own")
    if not isinstance(subject[0], nn.Module):
        raise InputError(f"model must be a forged nn.Module, got {type(subject[0]).__name__}")
    return forged_pair(subject[0]), subject[1], subject[2]


def _classifiers(pair: Pair) -> dict[str, Classifier]:
    sources = {name: each for name, each in pair.candidate.sources.items() if name not in (OWN, TRANSFERRED)}
    surrogates = {f"surrogate {name}": source for name, source in sources.items()}
    return {"base": pair.base.classifier, "candidate": pair.candidate.classifier, **surrogates}


def _config(pair: Pair, threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything that determines the numbers beside the classifiers and the data."""
    attacks = {name: attack_text(getattr(plan, name)) for name in ("non_adaptive", "adaptive", "longer")}
    # A list: the order in which views are tried changes the numbers.
    views = list(pair.candidate.views)
    return {**vars(plan), **attacks, "views": views, "threat": {"norm": threat.norm, "eps": threat.eps}}


def _attack(experiment: Experiment, pair: Pair, threat: Threat, plan: Plan) -> list[dict[str, Any]]:
    base, candidate = (
        prepared_once(experiment, plan.non_adaptive, side.classifier) for side in (pair.base, pair.candidate)
    )

    def compute(shard: Shard) -> dict[str, Any]:
        return attack_shard(pair, shard, (base(), candidate()), threat=threat, plan=plan, watch=watch)

    watch = Watch(lambda shard: {side: shard[side]["outcome"] for side in SIDES})
    task = experiment.task(f"audit__{_slug(threat)}", _classifiers(pair), _config(pair, threat, plan))
    return experiment.work(task, compute, title="audit", status=watch)


def _measure(experiment: Experiment, pair: Pair, threat: Threat, plan: Plan) -> dict[str, Any] | None:
    """The measurements of the checklist on the first images; None if the plan wants none."""
    first = range(min(plan.check_images, len(experiment.data)))
    if not first:
        return None
    name, config = f"audit-checks__{_slug(threat)}", _config(pair, threat, plan)
    task = experiment.task(name, _classifiers(pair), config, positions=first, shard_size=len(first))

    def measure(shard: Shard) -> dict[str, Any]:
        return checks.measure(pair, shard, threat=threat, plan=plan)

    return experiment.work(task, measure, positions=first, title="checks")[0]


def _smoothing_check(pair: Pair, run: RunDir | None) -> Check:
    found = []
    if run is not None:
        for result in run.results():
            with suppress(LipforgeError):  # of another format, or damaged: no reason to lose an audit
                found.append(run.read_result(result))
    certificates = [result for result in found if isinstance(result, CertifyResult) and result.model_digest]
    base, candidate = (digest_of(model_identity(side.classifier)) for side in (pair.base, pair.candidate))
    return checks.smoothing(certificates, base, candidate)


def gather(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    smoothing: Check,
    about: Mapping[str, Any],
    views: list[str],
    plan: Plan,
) -> AuditReport:
    """The report that the shards of an audit make up; `about` are its fields that no shard knows."""
    sides = {side: [shard[side] for shard in shards] for side in SIDES}
    base, candidate = (joined(sides[side], "outcome") for side in SIDES)
    stages = stage_names(views, square=plan.square > 0)
    clean, non_adaptive, union = (
        paired(_robust(base, upto), _robust(candidate, upto)) for upto in ([], [NON_ADAPTIVE], stages)
    )
    decision = decide(union, non_adaptive, same=all(shard["same"] for shard in shards), margin=plan.margin)
    notes = _notes(sides, len(base))
    return AuditReport(
        verdict=decision.verdict,
        sentence=decision.sentence,
        images_needed=decision.images_needed,
        clean=clean,
        non_adaptive=non_adaptive,
        union=union,
        rows=_rows(base, candidate, stages, shards),
        checks=(*_checks(shards, measured, _robust(candidate, [NON_ADAPTIVE]), notes), smoothing),
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


def _checks(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    non_adaptive: list[bool],
    notes: Sequence[AuditNote],
) -> tuple[Check, ...]:
    counts = [shard["double"] for shard in shards]
    double = None if None in counts else {key: sum(count[key] for count in counts) for key in counts[0]}
    flags = [note.note for note in notes if (note.side, note.attack) == ("candidate", NON_ADAPTIVE)]
    return (
        *(checks.checklist(measured, non_adaptive, joined(shards, "transferred")) if measured is not None else ()),
        checks.equal_effort([(*_spent(shard["base"]), *_spent(shard["candidate"])) for shard in shards]),
        checks.attack_flags(flags),
        checks.precision(double),
    )


def _rows(
    base: list[str], candidate: list[str], stages: list[str], shards: Sequence[Mapping[str, Any]]
) -> tuple[AuditRow, ...]:
    rows = []
    for last, name in enumerate([CLEAN, *stages]):
        left, right = (sum(_robust(outcome, stages[:last])) for outcome in (base, candidate))
        counts = (
            sum(shard[side][key].get(name, 0) for shard in shards)
            for key in ("gradients", "early_stopped")
            for side in SIDES
        )
        rows.append(AuditRow(name, left, right, (right - left) / len(base), *counts))
    return tuple(rows)


def _robust(outcome: Sequence[str], stages: Sequence[str]) -> list[bool]:
    """Which images are classified correctly and robust to these stages."""
    return [word == ROBUST or word not in (*stages, MISCLASSIFIED) for word in outcome]


def _effort(parts: Sequence[Mapping[str, Any]]) -> Effort:
    spent = [_spent(part) for part in parts]
    robust, total = sum(count for count, _ in spent), sum(count * mean for count, mean in spent)
    forwards, backwards = sum(part["forwards"] for part in parts), sum(joined(parts, "backwards"))
    return Effort(forwards, backwards, total / robust if robust else 0.0)


def _spent(summary: Mapping[str, Any]) -> tuple[int, float]:
    """How many images of a shard are robust, and how many gradients each of them took on average."""
    pairs = zip(summary["backwards"], summary["outcome"], strict=True)
    found = [count for count, word in pairs if word == ROBUST]
    return len(found), sum(found) / len(found) if found else 0.0


def _notes(sides: Mapping[str, Sequence[Mapping[str, Any]]], total: int) -> tuple[AuditNote, ...]:
    """The notes of each attack on each side, added up over the shards."""
    notes: dict[tuple[str, str], list[Note]] = {}
    for side, parts in sides.items():
        for stage, note in joined(parts, "notes"):
            notes.setdefault((side, stage), []).append(Note(**note))
    return tuple(AuditNote(*where, note) for where, found in notes.items() for note in merge_notes(found, total))


def _slug(threat: Threat) -> str:
    return str(threat).replace(" ", "-").replace("/", "over")
