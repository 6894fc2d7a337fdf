"""The audit: every attack on both sides, the checklist, and one verdict."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypedDict, Unpack, overload

from torch import Tensor, nn

from lipforge.attacks import attack_text
from lipforge.attacks.checks import LOOKED_AT
from lipforge.auditing import checks
from lipforge.auditing.attacks import Craft, Given, attack_shard
from lipforge.auditing.escalation import SIDES, Escalation, black_box, clear, doubts, merged, predicted
from lipforge.auditing.pairs import Pair, changed_pair, check_steady, classes_of, folded_pair, pair_of
from lipforge.auditing.plan import CLEAN, ESCALATION, FULL, NON_ADAPTIVE, OWN, STRAIGHT, TRANSFERRED, Plan, audit_plan
from lipforge.auditing.surrogates import with_gradient
from lipforge.auditing.verdict import BLOCK, Decision, among_others, decide, on_unseen
from lipforge.batching import ImageData, as_data
from lipforge.errors import InputError, LipforgeError
from lipforge.evaluation.robust import first_images, joined, prepared_once, setting_of
from lipforge.ranks import from_first, is_first
from lipforge.results import MISCLASSIFIED, ROBUST, CertifyResult, Improvement, Note, SearchResult, merge_notes
from lipforge.results.audit import AuditNote, AuditReport, AuditRow, Check, Effort
from lipforge.runs import Experiment, RunDir, Shard, Watch, digest_of
from lipforge.runs.identity import image_digests, model_identity, threat_slug
from lipforge.statistics import Comparison, paired
from lipforge.types import Classifier, Threat

Data = ImageData | tuple[Tensor, Tensor]


class Options(TypedDict, total=False):
    """What both forms of `audit` take by name."""

    attack: Craft | None
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
    attack: Craft | None = None,
    plan: Plan | None = None,
    run: RunDir | None = None,
    name: str = "",
    identity: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> AuditReport:
    """Whether a candidate is harder to fool than its base: one verdict, with the attacks and checks it rests on.

    `audit(model, data, threat)` compares a forged model with itself without forged functions; its BPDA views come by
    themselves. `audit(base, candidate, data, threat)` takes any two classifiers; `surrogates` are classifiers whose
    gradients might get past a defence of the candidate. `attack` is an attack of yours, which takes a classifier,
    images, labels and the threat and returns adversarial images; what lies outside the threat does not count. Both
    sides face the same attacks, images and random starts. With `run` every shard is kept: the same call again resumes,
    and torchrun's ranks share the work. `identity` adds what a resumed call must agree on; a classifier or surrogate
    that is no module needs it.
    """
    pair, data, threat = _subject(subject, surrogates)
    data = as_data(data)
    plan = plan if plan is not None else audit_plan(classes=classes_of(pair.base.classifier, data))
    plan = plan if attack is None else replace(plan, extra=Given(attack))
    unknown = [name for name, classifier in _classifiers(pair).items() if not isinstance(classifier, nn.Module)]
    unknown += ["attack"] if attack is not None else []
    if run is not None and unknown and not identity:  # a function has only its name
        raise InputError(
            f"identity must say what a classifier that is no module is, such as {{{unknown[0]!r}: 'mine-v2'}}, "
            f"so that a run is not resumed with another; it is needed for {', '.join(unknown)}"
        )
    models, size = (pair.candidate.classifier, pair.base.classifier), plan.shard_size
    experiment = Experiment.open(
        data, *models, run=run, shard_size=size, identity=identity, show_progress=show_progress
    )
    pair = _with_gradients(pair, experiment, surrogates)
    # Read once for all ranks: a result that appears in between must not make them disagree on when to stop.
    task, kept = f"audit__{threat_slug(threat)}", from_first(_results(run) if is_first() else {})
    others = [one.union.p_value for each, one in kept.items() if isinstance(one, AuditReport) and each != task]
    shards = _attack(experiment, pair, threat, plan, others)
    measured = _measure(experiment, pair, threat, plan)
    shards, escalated = _escalate(experiment, pair, threat, plan, shards, measured, others)
    about = setting_of(experiment, plan.non_adaptive, threat, plan.seed)
    about |= {"model": name, "non_adaptive_attack": about.pop("attack"), "margin": plan.margin, "planned": len(data)}
    stages = plan.stages(list(pair.candidate.views), escalated=escalated)
    if not any(shard[side]["gradients"].get(STRAIGHT) for shard in shards for side in SIDES):
        stages = [stage for stage in stages if stage != STRAIGHT]  # nothing rounds
    smoothing, chosen_on = _smoothing_check(pair, kept.values()), _chosen_on(kept.values(), data)
    report = gather(shards, measured, smoothing, about, stages, plan, others, chosen_on)
    return experiment.finish(task, report)


def _subject(subject: Sequence[Any], surrogates: Mapping[str, Classifier] | None) -> tuple[Pair, Any, Threat]:
    if len(subject) not in (3, 4) or not isinstance(subject[-1], Threat):
        raise InputError("audit takes (model, data, threat) or (base, candidate, data, threat), the last a Threat")
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
    attacks = {name: getattr(plan, name) for name in ("non_adaptive", "adaptive", "longer", "full", "extra")}
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
) -> tuple[list[dict[str, Any]], int]:
    """The shards after further attacks, while what would be claimed rests on a side in doubt; and how many rounds of
    them there were."""
    count, views = sum(len(shard["base"]["outcome"]) for shard in shards), list(pair.candidate.views)
    further = Escalation(pair, lambda positions: experiment.read(positions).x, count, threat, plan)
    for number, attack in enumerate((further.first, further.full)):
        stages = plan.stages(views, escalated=number)
        if not doubts(shards, measured, decision_of(shards, stages, plan, others), same=_same(shards)):
            return shards, number
        watch = Watch(lambda shard: {side: shard[side]["outcome"] for side in SIDES})
        name = f"audit-escalation-{number + 1}-{count}__{threat_slug(threat)}"
        task = experiment.task(name, _classifiers(pair), _config(pair, threat, plan), positions=range(count))

        def compute(shard: Shard, attack: Any = attack, known: Any = shards, watch: Watch = watch) -> dict[str, Any]:
            found: dict[str, Any] = attack(shard, known[int(shard.ids[0]) // plan.shard_size], watch)
            return found

        after = experiment.work(task, compute, positions=range(count), title="escalation", status=watch)
        shards = [merged(*each) for each in zip(shards, after, strict=True)]
    return shards, 2


def _measure(experiment: Experiment, pair: Pair, threat: Threat, plan: Plan) -> dict[str, Any] | None:
    """The measurements of the checklist on the first images; None if the plan wants none."""
    first = range(min(plan.check_images, len(experiment.data)))
    if not first:
        return None
    name, config = f"audit-checks__{threat_slug(threat)}", _config(pair, threat, plan)
    task = experiment.task(name, _classifiers(pair), config, positions=first, shard_size=len(first))

    def measure(shard: Shard) -> dict[str, Any]:
        return checks.measure(pair, shard, threat=threat, plan=plan)

    return experiment.work(task, measure, positions=first, title="checks")[0]


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


def _smoothing_check(pair: Pair, results: Iterable[Any]) -> Check:
    certificates = [result for result in results if isinstance(result, CertifyResult) and result.model_digest]
    sides = (getattr(side.classifier, "original", side.classifier) for side in (pair.base, pair.candidate))
    base, candidate = (digest_of(model_identity(side)) for side in sides)
    return checks.smoothing(certificates, base, candidate)


def gather(
    shards: Sequence[Mapping[str, Any]],
    measured: Mapping[str, Any] | None,
    smoothing: Check,
    about: Mapping[str, Any],
    stages: list[str],
    plan: Plan,
    others: Sequence[float] = (),
    chosen_on: Sequence[bool] = (),
) -> AuditReport:
    """The report that the shards of an audit make up; `about` are its fields that no shard knows, `others` the p-values
    of the other audits of the run, and `chosen_on` says which images chose the ratio."""
    sides = {side: [shard[side] for shard in shards] for side in SIDES}
    base, candidate = (joined(sides[side], "outcome") for side in SIDES)
    clean, non_adaptive, union = _comparisons(shards, stages)
    decision, notes = decision_of(shards, stages, plan, others), _notes(sides, len(base))
    decision = clear(decision, doubts(shards, measured, decision, same=_same(shards)))
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
            *_checks(shards, measured, _robust(candidate, [NON_ADAPTIVE]), notes, escalated=FULL in stages),
            smoothing,
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
    _, non_adaptive, union = _comparisons(shards, stages)
    return among_others(decide(union, non_adaptive, same=_same(shards), margin=plan.margin), union, others)


def _same(shards: Sequence[Mapping[str, Any]]) -> bool:
    """Whether both sides are the same function, as far as the shards show."""
    return all(shard["same"] for shard in shards)


def _comparisons(shards: Sequence[Mapping[str, Any]], stages: list[str]) -> list[Comparison]:
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
    *,
    escalated: bool,
) -> tuple[Check, ...]:
    counts = [shard["double"] for shard in shards]
    double = None if None in counts else {key: sum(count[key] for count in counts) for key in counts[0]}
    flags = [note.note for note in notes if (note.side, note.attack) == ("candidate", NON_ADAPTIVE)]
    return (
        *(checks.checklist(measured, non_adaptive, joined(shards, "transferred")) if measured is not None else ()),
        *(predicted([shard[side] for shard in shards], side) for side in SIDES),
        *(black_box(joined([shard[side] for shard in shards], "outcome"), side) for side in SIDES if escalated),
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
