"""The audit: every attack on both sides, the checklist, and one verdict."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from lipforge.audit.gather import gather
from lipforge.audit.measure import measure
from lipforge.audit.plan import Plan, audit_plan
from lipforge.audit.portfolio import run_portfolio
from lipforge.audit.report import AuditReport
from lipforge.audit.subjects import Pair, classes_of, forged_pair, pair_of
from lipforge.batching import ImageData, check_images
from lipforge.errors import InputError
from lipforge.evaluation.identity import attack_text
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import data_identity, model_identity
from lipforge.runs.tasks import digest_of
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
    identity: Mapping[str, Any] | None = None,
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
    identity: Mapping[str, Any] | None = None,
    show: bool | None = None,
) -> AuditReport: ...


def audit(
    *subject: Any,
    surrogates: Mapping[str, Classifier] | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    identity: Mapping[str, Any] | None = None,
    show: bool | None = None,
) -> AuditReport:
    """Whether a candidate is harder to fool than its base: one verdict, with the attacks and checks it rests on.

    `audit(model, data, threat)` takes a forged model, against itself without forged functions; its adaptive views come
    by themselves. `audit(base, candidate, data, threat)` takes any two classifiers; `surrogates` are classifiers whose
    gradients might get past a defence of the candidate. Both sides face the same attacks, images and random starts.
    With `run` every shard is kept, so that the same call again resumes and torchrun's ranks share the work. `identity`
    adds what a resumed call must agree on; a classifier or surrogate that is no module needs it.
    """
    pair, data, threat = _subject(subject, surrogates)
    source = as_data(data)
    plan = plan if plan is not None else audit_plan(classes=classes_of(pair.base.classifier, source))
    config = {"lipforge": lipforge_version(), **_models(pair, identity or {}, in_run=run is not None)}
    config |= _config(source, threat, plan)
    task = open_task(run, f"audit__{_slug(threat)}", config, len(source), plan.shard_size)
    watch = Watch(lambda shard: {side: shard[side]["outcome"] for side in ("base", "candidate")})
    shards = work(task, _shard(pair, source, threat, plan, watch), "audit", status=watch, show=show)
    measured = _measured(pair, source, threat, plan, run, config, show)
    models = {side: digest_of(config[side]) for side in ("base", "candidate")}
    about, names = _about(name, source, threat, plan), list(pair.candidate.surrogates)
    report = gather(shards, measured, about, plan, names, _certificates(run), models)
    if run is not None and is_first():
        run.write_result(f"audit__{_slug(threat)}", report)
    return report


def _subject(subject: Sequence[Any], surrogates: Mapping[str, Classifier] | None) -> tuple[Pair, Any, Threat]:
    if len(subject) not in (3, 4) or not isinstance(subject[-1], Threat):
        raise InputError("audit takes (model, data, threat) or (base, candidate, data, threat), the last a Threat")
    if subject[-1].norm == "l1":
        raise InputError("audit knows the norms linf and l2, got l1: several of its attacks have no l1 form")
    if len(subject) == 4:
        return pair_of(subject[0], subject[1], surrogates), subject[2], subject[3]
    if surrogates is not None:
        raise InputError("surrogates are for audit(base, candidate, data, threat); a forged model brings its own")
    if not isinstance(subject[0], nn.Module):
        raise InputError(f"model must be a forged nn.Module, got {type(subject[0]).__name__}")
    return forged_pair(subject[0]), subject[1], subject[2]


def _shard(pair: Pair, source: ImageData, threat: Threat, plan: Plan, watch: Watch) -> Any:
    def compute(images: range) -> dict[str, Any]:
        x, y, ids = _images(source, images, pair.device)
        return run_portfolio(pair, x, y, ids, threat=threat, plan=plan, watch=watch)

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


def _models(pair: Pair, identity: Mapping[str, Any], *, in_run: bool) -> dict[str, Any]:
    """What a resumed audit must agree on about its classifiers; a function has only its name, so a run needs more."""
    sources = pair.candidate.sources
    named = {"base": pair.base.classifier, "candidate": pair.candidate.classifier, **sources}
    unknown = [name for name, classifier in named.items() if not isinstance(classifier, nn.Module)]
    if in_run and unknown and not identity:
        raise InputError(
            f"identity must say what a classifier that is no module is, such as {{{unknown[0]!r}: 'mine-v2'}}, "
            f"so that a run is not resumed with another; it is needed for {', '.join(unknown)}"
        )
    return {
        "base": model_identity(pair.base.classifier),
        "candidate": model_identity(pair.candidate.classifier),
        # A list: the order in which surrogates are tried changes the numbers.
        "surrogates": [{"name": name, **model_identity(classifier)} for name, classifier in sources.items()],
        "identity": dict(identity),
    }


def _config(source: ImageData, threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything else that determines the numbers."""
    settings = {key: value for key, value in vars(plan).items() if key not in ("plain", "adaptive", "longer")}
    return {
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


def _certificates(run: RunDir | None) -> list[dict[str, Any]]:
    """The results of certify that a run holds, those that say of which model."""
    found = [run.read_result(name) for name in run.results()] if run is not None else []
    return [result for result in found if result.get("kind") == "certify" and result.get("model_digest")]


def _slug(threat: Threat) -> str:
    return str(threat).replace(" ", "-").replace("/", "over")
