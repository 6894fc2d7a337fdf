"""`improve`: try post-hoc parts and their combinations on validation images, and keep one whose gain is significant."""

import functools
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from lipforge.attacks import attack_text
from lipforge.auditing import audit_plan, classes_of
from lipforge.auditing.attacks import AttackedSide
from lipforge.auditing.pairs import BPDA, Side, changed_pair, check_steady, folded_pair
from lipforge.auditing.plan import NON_ADAPTIVE, OWN, TRANSFERRED, Plan
from lipforge.batching import ImageData, LabelledSource, as_data
from lipforge.data import View, split
from lipforge.errors import InputError
from lipforge.evaluation.robust import first_images, joined, prepared_once, setting_of, summary
from lipforge.forge import TTA, Recipe, forges, plain
from lipforge.forge.insert import is_changed
from lipforge.forge.layer import check_ratio
from lipforge.forge.tta import NAMES
from lipforge.improvement.choose import NOTHING, Candidate, best_so_far, choose, clean_cost, combinations, corrected
from lipforge.improvement.parts import RATIO, Fitted, combined, fit_parts
from lipforge.logs import warn
from lipforge.ranks import is_first
from lipforge.records import to_builtins
from lipforge.results import MISCLASSIFIED, ROBUST
from lipforge.results.evaluation import unreliable_notes
from lipforge.results.improve import CandidateScore, Improvement
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of
from lipforge.runs.identity import image_digests, slug, threat_slug
from lipforge.statistics import paired
from lipforge.types import Classifier, Threat, check_threat

PARTS = ("tta", "head", "affine", "forge")
LOOK_EVERY = 250  # images between two looks at whether a candidate is clearly worse than another
NO_MIRROR = re.compile(r"(?<!fashion)(?<!fashion.)mnist|usps|svhn|digit|letter|omniglot|gtsrb|(?<!con)text(?!ur)")
"""Words in the names of data sets whose mirror images mean something else: digits, letters, traffic signs."""
TEST_SET = re.compile(r"(?<![a-z])test(ing|set|s)?(?![a-z])[^/:]*(/((first|random) \d+|\d+ to \d+))*/?$", re.IGNORECASE)
"""The name of a set of test images, or of some of them: cifar10:test, x_test.npz, test/first 100; no folder above."""
DRAWN = "images were drawn from {}, the training images of {}"
MIRRORED = "the mirror image was not tried: in {} it may be of another class; tta=['mirror'] tries it all the same"


@dataclass(frozen=True)
class ImproveResult(Improvement):
    """What `improve` chose, as a recipe and as a changed copy of the model that shares its weights; None and the plain
    model where nothing helps."""

    recipe: Recipe | None = None
    model: nn.Module = field(default_factory=nn.Identity)

    @property
    def record(self) -> Improvement:
        """What goes into JSON: all but the model and the recipe, which has a file of its own."""
        names = [one.name for one in fields(Improvement)]
        return Improvement(**{name: getattr(self, name) for name in names})


def improve(
    model: nn.Module,
    data: LabelledSource,
    threat: Threat,
    *,
    calibrate: int = 5000,
    validate: int = 1000,
    max_cost: int = 6,
    parts: Sequence[str] = ("tta", "head", "forge"),
    tta: Sequence[TTA | str] | None = None,
    min_clean: float | None = None,
    ratio: float = RATIO,
    run: RunDir | None = None,
    name: str = "",
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    show_progress: bool | None = None,
) -> ImproveResult:
    """The change that makes a trained `model` harder to fool for at most `max_cost` forward passes per image.

    `calibrate` images of `data`, or of its training images where it knows them, fit the parts and `validate` others
    choose among them, drawn at random by `seed`; test images can then judge the choice: `audit(result.model, test,
    threat)`. What looks more robust than it is, because its gradients are masked, is not chosen. Base and
    candidates are attacked by `fast` and again from new starts, one with masks past its masks and through the base's
    gradients instead. Every part is tried alone, then what helped together. `parts` are of "tta", "head", "affine" and
    "forge"; `tta` are the sets of transforms to try instead of the usual ones. Candidates below `min_clean` (clean
    accuracy, a share) are not chosen. With `run` the same call again resumes, and torchrun's ranks share the work.
    """
    check_threat(threat)
    data = as_data(data)
    fitted = tuple(part for part in PARTS if part in parts and part != "tta")
    ttas = _transform_sets(data, tta, max_cost) if "tta" in parts else ()
    _check(model, parts, fitted, tta, max_cost, calibrate, validate, min_clean)
    _refuse_limit(data)
    if "forge" in parts and check_ratio(ratio) == 0:
        raise InputError("ratio must be above 0 to try forging: with 0 nothing changes; leave 'forge' out of parts")
    calibration, validation, _ = split(data, calibrate if fitted else 0, validate, seed=seed)
    _refuse_overlap(calibration, validation)
    _warn_of_test_images(validation.name.removesuffix("/validation"))
    open_on: dict[str, Any] = {"run": run, "shard_size": shard_size, "show_progress": show_progress}
    found = fit_parts(Experiment.open(calibration, model, **open_on), model, fitted, threat, ratio=ratio, seed=seed)
    experiment = Experiment.open(validation, model, **open_on)
    plan = audit_plan(classes=classes_of(model, validation), seed=seed, shard_size=shard_size)
    trial = Trial(experiment, model, threat, plan, found, min_clean)
    helped = [name for name in fitted if not found[name].remark]
    untried = _untried(data, parts, tta, ttas, found)
    if not helped and not ttas:
        raise InputError(f"there is nothing to try: {'; '.join(untried)}")
    scores = corrected(list(trial.scores(helped, ttas).values()))
    best, reason = choose(scores, min_clean)
    about, training = setting_of(experiment, plan.non_adaptive, threat, seed), getattr(data, "training", None)
    record = Improvement(
        chosen=best.label,
        reason=reason,
        candidates=tuple(scores),
        **about,
        count=len(validation),
        calibrated=len(calibration) if fitted else 0,
        max_cost=max_cost,
        min_clean=min_clean,
        notes=(
            *untried,
            *clean_cost(best),
            *((DRAWN.format(training.name, data.name),) if training is not None else ()),
        ),
        images=image_digests(calibration) + image_digests(validation) if run is not None else (),
        model_name=name,
    )
    experiment.finish(f"improve__{threat_slug(threat)}", record)
    recipe = None if best.label == NOTHING else trial.recipes[best.label]
    return ImproveResult(**vars(record), recipe=recipe, model=trial.models[best.label])


@dataclass(frozen=True)
class Trial:
    """Candidates on the validation images, each a task of its own."""

    experiment: Experiment
    base: nn.Module
    threat: Threat
    plan: Plan
    found: Fitted
    min_clean: float | None
    recipes: dict[str, Recipe] = field(default_factory=dict)
    models: dict[str, nn.Module] = field(default_factory=dict)

    def scores(self, fitted: Sequence[str], ttas: Sequence[TTA]) -> dict[Candidate, CandidateScore]:
        """The base, every part alone and the first set of transforms, then combinations of what helped."""
        tried: dict[Candidate, CandidateScore] = {}
        first = [Candidate(), *(Candidate((part,)) for part in fitted), *(Candidate((), tta) for tta in ttas[:1])]
        for candidate in first:
            tried[candidate] = self.score(candidate, tried)
        for candidate in combinations(tried, ttas, self.min_clean):
            tried[candidate] = self.score(candidate, tried)
        return tried

    def score(self, candidate: Candidate, tried: Mapping[Candidate, CandidateScore]) -> CandidateScore:
        """The candidate attacked, until it is clearly worse than the best so far that may be chosen."""
        label, changed = candidate.label, self._changed(candidate)
        best = best_so_far(tried, self.min_clean)
        prepared = prepared_once(self.experiment, self.plan.non_adaptive, changed)
        masked = any(forge.ratio > 0 for forge in forges(changed).values())
        names = (BPDA, TRANSFERRED) if masked else (OWN,)  # the base has no masks
        side, watch = functools.cache(lambda: self._side(changed, names, prepared())), Watch()

        def compute(shard: Shard) -> dict[str, Any]:
            started = time.perf_counter()
            attacked = AttackedSide(side(), shard, self.threat, watch)
            attacked.attack(NON_ADAPTIVE, prepared(), self.plan.non_adaptive, seed=self.plan.seed)
            for number, view in enumerate(names, start=1):
                attacked.attack(view, side().views[view], self.plan.adaptive, seed=self.plan.seed + number)
            found = attacked.summary()
            return {
                **{key: found[key] for key in ("outcome", "forwards")},
                "backwards": sum(found["backwards"]),
                "notes": to_builtins([note for _, note in attacked.notes]),
                "seconds": time.perf_counter() - started,
            }

        def worse(shards: Sequence[Mapping[str, Any]]) -> bool:
            robust = [word == ROBUST for word in joined(shards, "outcome")]
            return best is not None and _upper(best.robust[: len(robust)], robust) < 0

        name = f"improve__{slug(label)}__{threat_slug(self.threat)}"
        task = self.experiment.task(name, {"candidate": changed}, self._config(names))
        title = "base" if label == NOTHING else label
        shards = self.experiment.work(task, compute, title=title, status=watch, enough=worse, look_every=LOOK_EVERY)
        return self._scored(candidate, shards, next(iter(tried.values()), None))

    def _config(self, views: Sequence[str]) -> dict[str, Any]:
        """What determines the numbers beside model and data."""
        attacks = [attack_text(attack) for attack in (self.plan.non_adaptive, self.plan.adaptive)]
        return {
            "attacks": attacks,
            "views": list(views),
            "threat": {"norm": self.threat.norm, "eps": self.threat.eps},
            "seed": self.plan.seed,
        }

    def _changed(self, candidate: Candidate) -> nn.Module:
        """The base with the candidate's parts."""
        changed = plain(self.base)
        if candidate.label != NOTHING:
            recipe = combined(self.base, [self.found[part].recipe for part in candidate.fitted], candidate.tta)
            recipe.apply_(changed)
            self.recipes[candidate.label] = recipe
        self.models[candidate.label] = changed
        return changed

    def _side(self, changed: nn.Module, views: Sequence[str], prepared: Classifier) -> Side:
        check_steady("model", changed, first_images(self.experiment))
        if views == (OWN,):
            return Side(changed, {OWN: prepared}, {})
        pair = folded_pair(changed_pair(changed), first_images(self.experiment))
        return Side(changed, {name: pair.candidate.views[name] for name in views}, {})

    def _scored(
        self, candidate: Candidate, shards: Sequence[Mapping[str, Any]], base: CandidateScore | None
    ) -> CandidateScore:
        about = summary(shards)
        outcome = about["outcome"]
        change = clean = None
        if base is not None:
            before = base.outcome[: len(outcome)]
            change = paired(*([word == ROBUST for word in words] for words in (before, outcome)), anytime=True)
            clean = paired(*([word != MISCLASSIFIED for word in words] for words in (before, outcome)), anytime=True)
        whole = len(outcome) == len(self.experiment.data)
        return CandidateScore(
            label=candidate.label,
            parts=candidate.parts,
            cost=candidate.cost,
            preparation=sum(self.found[part].seconds for part in candidate.fitted),
            status="base" if base is None else "attacked" if whole else "stopped",
            **about,
            unreliable=bool(unreliable_notes(about["notes"], len(outcome), list(outcome).count(ROBUST))),
            clean_change=clean,
            robust_change=change,
            p_value=None,
            change=change_of(self.models[candidate.label]),
        )


def _upper(best: Sequence[bool], robust: Sequence[bool]) -> float:
    return paired(best, robust, anytime=True).interval[1]


def _transform_sets(data: ImageData, asked: Sequence[TTA | str] | None, max_cost: int) -> tuple[TTA, ...]:
    """The sets of transforms to try within the cost, cheapest first: those asked for, or by default the mirror image
    and its products with shifts; without the mirror where the images are digits or letters."""
    if isinstance(asked, str):
        raise InputError(f"tta must be a list of sets of transforms, such as [{asked!r}], got a text")
    if asked is not None and not asked:
        raise InputError("tta must name at least one set of transforms, got none; leave 'tta' out of parts to try none")
    if asked is not None:
        sets = [one if isinstance(one, TTA) else TTA.parse(one) for one in asked]
        if above := [one for one in sets if one.cost > max_cost]:
            raise InputError(
                f"tta {above[0]} takes {above[0].cost} forward passes per image, above max_cost {max_cost}"
            )
    else:
        sets = [TTA.parse(name) for name in NAMES if name.startswith("mirror") != _unmirrored(data)]
    for one in sets:
        one.transformed(data.batch([0])[0])  # raises where a shift is larger than the image, before anything is fitted
    return tuple(sorted((one for one in sets if one.cost <= max_cost), key=lambda one: one.cost))


def _unmirrored(data: ImageData) -> bool:
    return NO_MIRROR.search(data.name.lower()) is not None


def _check(
    model: nn.Module,
    parts: Sequence[str],
    fitted: Sequence[str],
    tta: Sequence[TTA | str] | None,
    max_cost: int,
    calibrate: int,
    validate: int,
    min_clean: float | None,
) -> None:
    if unknown := [part for part in parts if part not in PARTS]:
        raise InputError(f"parts must be of {', '.join(PARTS)}, got {unknown[0]!r}")
    if not parts or (not fitted and max_cost < 2):
        raise InputError(
            f"there is nothing to try with parts {list(parts)} and max_cost {max_cost}: the mirror image takes 2 passes"
        )
    if tta is not None and "tta" not in parts:
        raise InputError(f"tta says which transforms to try, but parts has no 'tta', got {list(parts)}")
    if is_changed(model):
        raise InputError("model must be as it was trained, without forged functions, TTA or head; call remove_ first")
    for name, value in {
        "max_cost": max_cost,
        "validate": validate,
        **({"calibrate": calibrate} if fitted else {}),
    }.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if min_clean is not None and not 0 <= min_clean <= 1:
        raise InputError(f"min_clean must be a share in [0, 1], got {min_clean}")


def _warn_of_test_images(name: str) -> None:
    if TEST_SET.search(name) and is_first():
        warn(
            f"going by its name, {name} holds test images. Images that fit and choose a change cannot judge it: "
            "use training images here, and keep the test images for the audit",
            stacklevel=3,
        )


def _refuse_limit(data: ImageData) -> None:
    """Raise if some images were selected, but others would be used: the training images that the data set knows."""
    if isinstance(data, View) and data.training is not None and len(data) < len(data.data):
        raise InputError(
            f"improve draws from {data.training.name}, the training images of {data.name}, so that a limit on the "
            f"latter has no effect; give {data.training.name} as the data, with the limit"
        )


def _refuse_overlap(calibration: View, validation: View) -> None:
    """Raise if an image is in both: what was fitted on it would look better than it is."""
    seen = dict(zip(image_digests(calibration), range(len(calibration)), strict=True)) if len(calibration) else {}
    for position, digest in enumerate(image_digests(validation)):
        if digest in seen:
            raise InputError(
                f"validation image {validation.indices[position]} is calibration image "
                f"{calibration.indices[seen[digest]]} once more; remove one of them from "
                f"{validation.data.name}, or try another seed"
            )


def _untried(
    data: ImageData, parts: Sequence[str], asked: Sequence[TTA | str] | None, ttas: Sequence[TTA], found: Fitted
) -> list[str]:
    """What was not tried, and why."""
    notes = [f"{name} was not tried: {part.remark}" for name, part in found.items() if part.remark]
    if "tta" in parts and asked is None and _unmirrored(data):
        notes.insert(0, MIRRORED.format(data.name))
    if "tta" in parts and not ttas:
        notes.insert(0, "tta was not tried: every set of transforms takes more than max_cost forward passes")
    return notes
