"""The audit: every attack on both sides, the checklist, and one verdict."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.audit import checks
from lipforge.audit.measure import measure
from lipforge.audit.plan import Plan, audit_plan
from lipforge.audit.portfolio import PLAIN, run_portfolio, stage_names
from lipforge.audit.report import AuditReport, AuditRow, Check, Effort
from lipforge.audit.subjects import Pair, forged_pair, pair_of
from lipforge.audit.verdict import decide
from lipforge.batching import ImageData, check_images
from lipforge.errors import InputError
from lipforge.evaluation.compare import paired
from lipforge.evaluation.identity import attack_text, data_identity, model_identity
from lipforge.evaluation.pair import as_data
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.types import Classifier, Threat

Data = ImageData | tuple[Tensor, Tensor]


@overload
def audit(
    model: nn.Module,
    data: Data,
    threat: Threat,
    /,
    *,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    show: bool | None = None,
) -> AuditReport: ...


@overload
def audit(
    base: Classifier,
    candidate: Classifier,
    data: Data,
    threat: Threat,
    /,
    *,
    surrogates: Mapping[str, Classifier] | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    show: bool | None = None,
) -> AuditReport: ...


def audit(
    *subject: Any,
    surrogates: Mapping[str, Classifier] | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    show: bool | None = None,
) -> AuditReport:
    """Whether a candidate is harder to fool than its base: one verdict, with the attacks and checks it rests on.

    `audit(model, data, threat)` takes a forged model, against itself without forged functions; its adaptive views come
    by themselves. `audit(base, candidate, data, threat)` takes any two classifiers; `surrogates` are classifiers whose
    gradients might get past a defence of the candidate. Both sides face the same attacks, images and random starts.
    With `run` every shard is kept, so that the same call again resumes and torchrun's ranks share the work.
    """
    pair, data, threat = _subject(subject, surrogates)
    source = as_data(data)
    plan = plan if plan is not None else audit_plan(classes=source.classes)
    config = _config(pair, source, threat, plan)
    task = open_task(run, f"audit__{_slug(threat)}", config, len(source), plan.shard_size)
    shards = work(task, _shard(pair, source, threat, plan), "audit", show=show)
    measured = _measured(pair, source, threat, plan, run, config, show)
    report = _report(shards, measured, _about(name, source, threat, plan), plan, list(pair.candidate.surrogates), run)
    if run is not None and is_first():
        run.write_result(f"audit__{_slug(threat)}", report)
    return report


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


def _shard(pair: Pair, source: ImageData, threat: Threat, plan: Plan) -> Any:
    def compute(images: range) -> dict[str, Any]:
        x, y, ids = _images(source, images, pair.device)
        return run_portfolio(pair, x, y, ids, threat=threat, plan=plan)

    return compute


def _measured(
    pair: Pair,
    source: ImageData,
    threat: Threat,
    plan: Plan,
    run: RunDir | None,
    config: Mapping[str, Any],
    show: bool | None,
) -> dict[str, Any] | None:
    count = min(plan.check_images, len(source))
    if count == 0:
        return None

    def compute(images: range) -> dict[str, Any]:
        x, y, ids = _images(source, images, pair.device)
        return measure(pair, x, y, ids, threat=threat, plan=plan)

    task = open_task(run, f"audit-checks__{_slug(threat)}", config, count, count)
    return work(task, compute, "checks", show=show)[0]


def _images(source: ImageData, images: range, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    x, y = source.batch(list(images))
    check_images(x, first=images.start)
    return x.to(device), y.to(device), torch.tensor(images, device=device)


def _config(pair: Pair, source: ImageData, threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything that determines the numbers."""
    settings = {key: value for key, value in vars(plan).items() if key not in ("plain", "adaptive", "longer")}
    return {
        "base": model_identity(pair.base.classifier),
        "candidate": model_identity(pair.candidate.classifier),
        "surrogates": list(pair.candidate.surrogates),
        "data": data_identity(source),
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "plain": attack_text(plan.plain),
        "adaptive": attack_text(plan.adaptive),
        "longer": attack_text(plan.longer),
        **settings,
    }


def _about(name: str, source: ImageData, threat: Threat, plan: Plan) -> dict[str, Any]:
    return {
        "model": name,
        "data": source.name,
        "threat": str(threat),
        "norm": threat.norm,
        "eps": threat.eps,
        "seed": plan.seed,
        "count": len(source),
        "plain_attack": attack_text(plan.plain),
        "margin": plan.margin,
    }


def _report(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    about: Mapping[str, Any],
    plan: Plan,
    surrogates: list[str],
    run: RunDir | None,
) -> AuditReport:
    base, candidate = (_joined(shards, side, "outcome") for side in ("base", "candidate"))
    stages = stage_names(surrogates, square=plan.square > 0)
    union, plain = (paired(_left(base, upto), _left(candidate, upto)) for upto in (stages, stages[:1]))
    decision = decide(union, plain, same=all(shard["same"] for shard in shards), margin=plan.margin)
    found = _checks(shards, measured, _left(candidate, [PLAIN]), run)
    failed = [check for check in found if check.passed is False]
    return AuditReport(
        verdict=decision.verdict,
        sentence=decision.sentence,
        doubts=tuple(f"{check.name}: no; {check.evidence}" for check in failed),
        images_needed=decision.images_needed,
        clean=paired(_left(base, []), _left(candidate, [])),
        plain=plain,
        union=union,
        rows=_rows(base, candidate, stages),
        checks=found,
        base_effort=_effort(shards, "base"),
        candidate_effort=_effort(shards, "candidate"),
        base_outcome=tuple(base),
        candidate_outcome=tuple(candidate),
        notes=tuple(dict.fromkeys(f"base: {note}" for note in _joined(shards, "base", "notes"))),
        seconds=sum(shard["seconds"] for shard in shards),
        **about,
    )


def _checks(
    shards: Sequence[Mapping[str, Any]], measured: Mapping[str, Any] | None, plain: list[bool], run: RunDir | None
) -> tuple[Check, ...]:
    transfer = [right for shard in shards for right in shard["transfer"]["candidate"]]
    counts = [shard["precision"] for shard in shards]
    precision = None if None in counts else {key: sum(count[key] for count in counts) for key in counts[0]}
    square = sum(shard["candidate"]["square"] for shard in shards)
    certificates = [run.read_result(name) for name in run.results()] if run is not None else []
    return (
        *(checks.checklist(measured, plain, transfer) if measured is not None else ()),
        checks.autoattack_flags(_joined(shards, "candidate", "notes"), square, len(plain)),
        checks.precision(precision),
        checks.smoothing([result for result in certificates if result.get("kind") == "certify"]),
    )


def _rows(base: list[str], candidate: list[str], stages: list[str]) -> tuple[AuditRow, ...]:
    rows = []
    for last in range(len(stages) + 1):
        left, right = (sum(_left(outcome, stages[:last])) for outcome in (base, candidate))
        rows.append(AuditRow("clean" if last == 0 else stages[last - 1], left, right, (right - left) / len(base)))
    return tuple(rows)


def _left(outcome: Sequence[str], stages: Sequence[str]) -> list[bool]:
    """Which images are right and stand after these stages."""
    return [word == ROBUST or word not in (*stages, MISCLASSIFIED) for word in outcome]


def _effort(shards: Sequence[Mapping[str, Any]], side: str) -> Effort:
    backwards, outcome = _joined(shards, side, "backwards"), _joined(shards, side, "outcome")
    spent = [count for count, word in zip(backwards, outcome, strict=True) if word == ROBUST]
    forwards = sum(shard[side]["forwards"] for shard in shards)
    return Effort(forwards, sum(backwards), sum(spent) / len(spent) if spent else 0.0)


def _joined(shards: Sequence[Mapping[str, Any]], side: str, key: str) -> list[Any]:
    return [item for shard in shards for item in shard[side][key]]


def _slug(threat: Threat) -> str:
    return str(threat).replace(" ", "-").replace("/", "over")
