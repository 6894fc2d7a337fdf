"""The audit: every attack on both sides, the checklist, and one verdict."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict, Unpack, overload

from torch import nn

from lipforge.attacks import AnyAttack, as_attack, attack_text, is_function
from lipforge.attacks.checks import LOOKED_AT
from lipforge.auditing import checks
from lipforge.auditing.attacks import attack_shard
from lipforge.auditing.escalation import (
    MOST_GAINED,
    SIDES,
    Escalation,
    doubts,
    left_by_non_adaptive,
    merged,
)
from lipforge.auditing.gathering import comparisons, decision_of, gather, same_function
from lipforge.auditing.pairs import Pair, changed_pair, check_steady, classes_of, folded_pair, pair_of
from lipforge.auditing.plan import (
    OWN,
    STRAIGHT,
    TRANSFERRED,
    Plan,
    audit_plan,
)
from lipforge.auditing.surrogates import with_gradient
from lipforge.auditing.verdict import BLOCK, Decision
from lipforge.batching import ImageData, LabelledSource, as_data
from lipforge.errors import InputError, LipforgeError
from lipforge.evaluation.robust import first_images, prepared_once, setting_of
from lipforge.forge import Fold, with_fold
from lipforge.ranks import from_first
from lipforge.results import BracketResult, CertifyResult, Improvement, SearchResult
from lipforge.results.audit import AuditReport, Check
from lipforge.runs import Experiment, RunDir, Shard, Watch, change_of, digest_of
from lipforge.runs.identity import image_digests, model_identity, threat_slug
from lipforge.types import Classifier, Threat, check_threat


class Options(TypedDict, total=False):
    """What both forms of `audit` take by name."""

    attack: AnyAttack | None
    plan: Plan | None
    run: RunDir | None
    name: str
    identity: Mapping[str, Any] | None
    show_progress: bool | None


class ModelOptions(Options, total=False):
    fold: Fold | None


class PairOptions(Options, total=False):
    surrogates: Mapping[str, Classifier] | None


@overload
def audit(
    model: nn.Module, data: LabelledSource, threat: Threat, /, **options: Unpack[ModelOptions]
) -> AuditReport: ...
@overload
def audit(
    base: Classifier, candidate: Classifier, data: LabelledSource, threat: Threat, /, **options: Unpack[PairOptions]
) -> AuditReport: ...


def audit(
    *subject: Any,
    surrogates: Mapping[str, Classifier] | None = None,
    fold: Fold | None = None,
    attack: AnyAttack | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    identity: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> AuditReport:
    """Whether a candidate is harder to fool than its base: one verdict, with the attacks and checks it rests on.

    `audit(model, data, threat)` compares a forged model with itself without forged functions; its BPDA views come by
    themselves, and a `fold` of it, counted on calibration images, lets the check of the "+ Weight" variant run.
    `audit(base, candidate, data, threat)` takes any two classifiers; `surrogates` are classifiers whose
    gradients might get past a defence of the candidate. `attack` is an attack of yours: one of lipforge, its text, or a
    function of a classifier, images and labels (and the threat) to adversarial images; what lies outside the threat
    does not count. Both sides face the same attacks, images and random starts. With `run` every shard is kept: the same
    call again resumes, and torchrun's ranks share the work. `identity` adds what a resumed call must agree on; a
    classifier or surrogate that is no module needs it.
    """
    pair, data, threat = _subject(subject, surrogates)
    weight = None if fold is None else _weight_variant(pair, fold)  # early: a fold of another model is an error
    data = as_data(data)
    base, candidate = (classes_of(side.classifier, data) for side in (pair.base, pair.candidate))
    if base != candidate:
        raise InputError(f"base and candidate must have the same classes, got {base} and {candidate} of them")
    plan = plan if plan is not None else audit_plan(classes=base)
    plan = plan if attack is None else replace(plan, extra=as_attack(attack))
    unknown = [name for name, classifier in _classifiers(pair).items() if not isinstance(classifier, nn.Module)]
    unknown += ["attack"] if attack is not None and is_function(attack) else []
    if run is not None and unknown and not identity:  # a function has only its name
        raise InputError(
            f"identity must say what a classifier that is no module is, such as {{{unknown[0]!r}: 'mine-v2'}}, "
            f"so that a run is not resumed with another; it is needed for {', '.join(unknown)}"
        )
    models, size = (pair.candidate.classifier, pair.base.classifier), plan.shard_size
    experiment = Experiment.open(
        data, *models, run=run, shard_size=size, identity=identity, show_progress=show_progress
    )
    changes = {f"{side}_change": change_of(model) for side, model in zip(SIDES, models[::-1], strict=True)}
    pair = _with_gradients(pair, experiment, surrogates)
    # Read once for all ranks: a result that appears in between must not make them disagree on when to stop.
    task, kept = f"audit__{threat_slug(threat)}", from_first(_results(run))
    others = [one.union.p_value for each, one in kept.items() if isinstance(one, AuditReport) and each != task]
    shards = _attack(experiment, pair, threat, plan, others)
    measured = _measure(experiment, pair, threat, plan, shards)
    if measured is not None and fold is not None and weight is not None:
        measured["fold"] = _measure_fold(experiment, pair, weight, fold, threat, plan)
    shards, further = _escalate(experiment, pair, threat, plan, shards, measured, others)
    about = setting_of(experiment, plan.non_adaptive, threat, plan.seed)
    about |= {"model": name, "non_adaptive_attack": about.pop("attack"), "margin": plan.margin, "planned": len(data)}
    about |= changes
    stages = plan.stages(list(pair.candidate.views), **further)
    if not any(shard[side]["gradients"].get(STRAIGHT) for shard in shards for side in SIDES):
        stages = [stage for stage in stages if stage != STRAIGHT]  # nothing rounds
    certified, chosen_on = _certified(pair, kept.values(), threat), _chosen_on(kept.values(), data)
    report = gather(shards, measured, certified, about, stages, plan, others, chosen_on)
    return experiment.finish(task, report)


def _subject(subject: Sequence[Any], surrogates: Mapping[str, Classifier] | None) -> tuple[Pair, Any, Threat]:
    if len(subject) not in (3, 4):
        raise InputError(
            f"audit takes (model, data, threat) or (base, candidate, data, threat), got {len(subject)} arguments"
        )
    check_threat(subject[-1])
    if len(subject) == 4:
        return pair_of(subject[0], subject[1], surrogates), subject[2], subject[3]
    if surrogates is not None:
        raise InputError("surrogates are for audit(base, candidate, data, threat); a forged model brings its own")
    if not isinstance(subject[0], nn.Module):
        raise InputError(f"model must be a forged nn.Module, got {type(subject[0]).__name__}")
    return changed_pair(subject[0]), subject[1], subject[2]


def _with_gradients(pair: Pair, experiment: Experiment, surrogates: Mapping[str, Classifier] | None) -> Pair:
    """The pair, with a gradient of 0 for a side that gives none, so that every stage can run; not for forged models."""
    if pair.model is not None:
        return pair
    x = experiment.read([0]).x
    base, candidate = (with_gradient(side.classifier, x) for side in (pair.base, pair.candidate))
    return pair_of(base, candidate, surrogates)


def _classifiers(pair: Pair) -> dict[str, Classifier]:
    sources = {name: each for name, each in pair.candidate.sources.items() if name not in (OWN, TRANSFERRED)}
    surrogates = {f"surrogate {name}": source for name, source in sources.items()}
    return {"base": pair.base.classifier, "candidate": pair.candidate.classifier, **surrogates}


def _config(pair: Pair, threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything that determines the numbers beside the classifiers and the data."""
    attacks = {
        name: getattr(plan, name)
        for name in ("non_adaptive", "adaptive", "longer", "full", "boundary", "hard_label", "extra")
    }
    attacks = {name: None if attack is None else attack_text(attack) for name, attack in attacks.items()}
    # A list: the order in which views are tried changes the numbers.
    views = list(pair.candidate.views)
    # Where an audit stops changes no shard: one that stopped early may go on to all images in the same run.
    settings = {name: value for name, value in vars(plan).items() if name != "stop_early"}
    return {**settings, **attacks, "views": views, "threat": {"norm": threat.norm, "eps": threat.eps}}


def _attack(
    experiment: Experiment, pair: Pair, threat: Threat, plan: Plan, others: Sequence[float]
) -> list[dict[str, Any]]:
    base, candidate = (
        prepared_once(experiment, plan.non_adaptive, side.classifier) for side in (pair.base, pair.candidate)
    )

    @functools.cache
    def refuse_random() -> None:
        x = experiment.read(range(min(LOOKED_AT, len(experiment.data)))).x
        for name, classifier in _classifiers(pair).items():
            check_steady(name, classifier, x)

    folded = functools.cache(lambda: folded_pair(pair, first_images(experiment)))

    def compute(shard: Shard) -> dict[str, Any]:
        refuse_random()
        return attack_shard(folded(), shard, (base(), candidate()), threat=threat, plan=plan, watch=watch)

    def enough(shards: Sequence[Mapping[str, Any]]) -> bool:
        return decision_of(shards, plan.stages(list(pair.candidate.views)), plan, others).decided

    watch = Watch(lambda shard: {side: shard[side]["outcome"] for side in SIDES})
    task = experiment.task(f"audit__{threat_slug(threat)}", _classifiers(pair), _config(pair, threat, plan))
    stop = enough if plan.stop_early else None
    return experiment.work(task, compute, title="audit", status=watch, enough=stop, look_every=BLOCK)


def _escalate(
    experiment: Experiment,
    pair: Pair,
    threat: Threat,
    plan: Plan,
    shards: list[dict[str, Any]],
    measured: Mapping[str, Any] | None,
    others: Sequence[float],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The shards after further attacks, and which there were, as `Plan.stages` takes it: those before a gain where
    one would be claimed, then others while what would be claimed rests on a side in doubt."""
    count, views = sum(len(shard["base"]["outcome"]) for shard in shards), list(pair.candidate.views)
    further = Escalation(pair, lambda positions: experiment.read(positions).x, count, threat, plan)

    def attacked(name: str, attack: Any) -> list[dict[str, Any]]:
        watch = Watch(lambda shard: {side: shard[side]["outcome"] for side in SIDES})
        task = experiment.task(
            f"audit-{name}-{count}__{threat_slug(threat)}", _classifiers(pair), _config(pair, threat, plan),
            positions=range(count),
        )  # fmt: skip

        def compute(shard: Shard) -> dict[str, Any]:
            found: dict[str, Any] = attack(shard, shards[int(shard.ids[0]) // plan.shard_size], watch)
            return found

        after = experiment.work(task, compute, positions=range(count), title="escalation", status=watch)
        return [merged(*each) for each in zip(shards, after, strict=True)]

    ran: dict[str, Any] = {"escalated": 0, "before_gain": ()}

    def decision() -> Decision:
        return decision_of(shards, plan.stages(views, **ran), plan, others)

    seen: frozenset[int] = frozenset()
    for number, attack in enumerate((further.first, further.full, None)):
        if plan.before_gain(threat) and decision().verdict == "real":
            gained = comparisons(shards, plan.stages(views, **ran))[2].gained_images[:MOST_GAINED]
            further.gained, seen = frozenset(gained) - seen, seen | frozenset(gained)
            if further.gained:  # those that harder attacks on the base have added, the second time
                shards = attacked(f"before-gain-{number}", further.before_gain)
                ran["before_gain"] = tuple(plan.before_gain(threat))
        if attack is None or not doubts(shards, measured, decision(), same=same_function(shards)):
            break
        shards = attacked(f"escalation-{ran['escalated'] + 1}", attack)
        ran["escalated"] += 1
    return shards, ran


def _measure(
    experiment: Experiment, pair: Pair, threat: Threat, plan: Plan, shards: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """The measurements of the checklist on the first images that were attacked; None if the plan wants none."""
    left = left_by_non_adaptive(shards)[: plan.check_images]
    first = range(len(left))
    if not first:
        return None
    name, config = f"audit-checklist__{threat_slug(threat)}", _config(pair, threat, plan)
    task = experiment.task(name, _classifiers(pair), config, positions=first, shard_size=checks.SHARD)

    def measure(shard: Shard) -> dict[str, Any]:
        own = [left[position] for position in shard.ids.tolist()]
        return checks.measure(pair, shard, left=own, threat=threat, plan=plan)

    return checks.joined(experiment.work(task, measure, positions=first, title="checks"))


def _weight_variant(pair: Pair, fold: Fold) -> nn.Module:
    """The "+ Weight" model of a fold; an error unless it was counted on this forged model."""
    change = change_of(pair.candidate.classifier)
    if pair.model is None or change is None:
        raise InputError("fold is for audit(model, data, threat): it has the zero counts of that forged model")
    if fold.counts.recipe not in ("", change.recipe):
        raise InputError("the fold was counted at another ratio or with another recipe; make one of this model")
    return with_fold(pair.model, fold)


def _measure_fold(
    experiment: Experiment, pair: Pair, weight: nn.Module, fold: Fold, threat: Threat, plan: Plan
) -> dict[str, Any]:
    """The measurements of the "+ Weight" variant: a task of its own, so that an audit can get a fold later."""
    first = range(min(plan.check_images, len(experiment.data)))
    digest = digest_of({"frequency": fold.frequency, "columns": fold.columns})
    name, config = f"audit-fold-{digest[:8]}__{threat_slug(threat)}", {**_config(pair, threat, plan), "fold": digest}
    task = experiment.task(name, _classifiers(pair), config, positions=first, shard_size=len(first))

    def measure(shard: Shard) -> dict[str, Any]:
        return checks.measure_fold(pair, weight, fold, shard, threat=threat, plan=plan)

    return experiment.work(task, measure, positions=first, title="fold")[0]


def _results(run: RunDir | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if run is None:
        return found
    for name in run.results():
        with suppress(LipforgeError):  # of another format, or damaged: no reason to lose an audit
            found[name] = run.read_result(name)
    return found


def _chosen_on(results: Iterable[Any], data: ImageData) -> list[bool]:
    """Which images `search` or `improve` of the run has seen, to fit or to choose a change; empty without one."""
    choices = [result for result in results if isinstance(result, SearchResult | Improvement)]
    seen = {image for result in choices for image in result.images}
    return [image in seen for image in image_digests(data)] if seen else []


def _certified(pair: Pair, results: Iterable[Any], threat: Threat) -> tuple[Check, Check]:
    """What the run's certificates of the two models say, by smoothing and by bounds."""
    certificates = [result for result in results if isinstance(result, CertifyResult) and result.model_digest]
    brackets = [result for result in results if isinstance(result, BracketResult) and result.model_digest]
    sides = (getattr(side.classifier, "original", side.classifier) for side in (pair.base, pair.candidate))
    base, candidate = (digest_of(model_identity(side)) for side in sides)
    return checks.bracket(brackets, base, candidate, threat), checks.smoothing(certificates, base, candidate)
