"""Every attack of the audit on one shard of images: the union of what they break is what counts."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks import APGD, Attack, Square, square_notes
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.audit.plan import Plan
from lipforge.audit.refine import Refine
from lipforge.audit.subjects import Pair, Side, in_double
from lipforge.types import Classifier, Threat

PLAIN, TRANSFER, REFINED, LONGER, SQUARE, EVEN, DOUBLE = (
    "plain",
    "images of the other",
    "images of the other, refined",
    "longer, from new starts",
    "square",
    "even budget",
    "float64",
)
MOST_ROUNDS = 20
"""How often the side with fewer gradients per standing image is attacked again, at most."""


@dataclass
class Front:
    """One side of the audit on one shard: what stands, how each image fell, and what that took."""

    side: Side
    x: Tensor
    y: Tensor
    ids: Tensor
    threat: Threat
    images: Tensor
    watch: Callable[[str], None]
    outcome: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    forwards: int = 0
    square: int = 0
    gradients: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backwards = torch.zeros(len(self.x), dtype=torch.int64)
        # Attacks get only what is right: some of them never look at the clean image.
        self.forwards = len(self.x)
        self.outcome = [ROBUST if right else MISCLASSIFIED for right in _judged(self, self.x)]

    @property
    def standing(self) -> list[int]:
        return [place for place, outcome in enumerate(self.outcome) if outcome == ROBUST]

    @property
    def effort(self) -> float:
        """Gradients per image that stands."""
        return float(self.backwards[self.standing].double().mean()) if self.standing else 0.0

    @property
    def best(self) -> Classifier:
        """The view whose gradients broke most here so far, for the attacks that use only one; the first of equals."""
        views = self.side.surrogates
        return views[max(views, key=self.outcome.count)]

    def run(self, stage: str, classifier: Classifier, attack: Attack, *, seed: int) -> None:
        """Attack what stands; a success counts only if the side's own classifier confirms it."""
        places = self.standing
        if not places:
            return
        self.watch(stage)
        at = torch.tensor(places, device=self.x.device)
        result = attack.run(classifier, self.x[at], self.y[at], threat=self.threat, seed=seed, sample_ids=self.ids[at])
        self.images[at] = result.images
        self.forwards += int(result.forwards.sum())
        self.backwards[places] += result.backwards.cpu()
        self.gradients[stage] = self.gradients.get(stage, 0) + int(result.backwards.sum())
        if stage == PLAIN:
            self.square = sum(outcome.startswith("square") for outcome in result.outcome)
            # What Square broke is judged on all images together; in a shard one image is already a percent.
            alone = square_notes(result.stages, len(places))
            self.notes = tuple(note for note in result.notes if note not in alone)
        for place, outcome in zip(places, result.outcome, strict=True):
            if outcome != ROBUST:
                self.outcome[place] = stage


def run_portfolio(
    pair: Pair,
    x: Tensor,
    y: Tensor,
    ids: Tensor,
    *,
    threat: Threat,
    plan: Plan,
    watch: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """What became of each image of a shard on both sides, ready for JSON; `watch` is told each stage as it begins."""
    started = time.perf_counter()
    base, candidate = (
        Front(side, x, y, ids, threat, x.clone(), _named(name, watch))
        for name, side in (("base", pair.base), ("candidate", pair.candidate))
    )
    same = _same_logits(base, candidate)
    for front in (base, candidate):
        front.run(PLAIN, front.side.classifier, plan.plain, seed=plan.seed)
    same = same and torch.equal(base.images, candidate.images) and _same_logits(base, candidate)
    transfer = {"base": _judged(base, candidate.images), "candidate": _judged(candidate, base.images)}
    _cross(TRANSFER, base, candidate, steps=0, seed=plan.seed)
    names = list(pair.candidate.surrogates)
    for number, name in enumerate(names, start=1):
        for front in (base, candidate):
            front.run(name, front.side.surrogates[name], plan.adaptive, seed=plan.seed + number)
    _cross(REFINED, base, candidate, steps=plan.refine, seed=plan.seed)
    for front in (base, candidate):
        front.run(LONGER, front.best, plan.longer, seed=plan.seed + len(names) + 1)
        if plan.square:
            front.run(SQUARE, front.side.classifier, Square(queries=plan.square), seed=plan.seed)
    _even(base, candidate, plan.seed + len(names) + 2)
    precision = _in_double(base, candidate, plan.seed)
    return {
        "base": _sheet(base),
        "candidate": _sheet(candidate),
        "same": same,
        "transfer": transfer,
        "precision": precision,
        "seconds": time.perf_counter() - started,
    }


def _named(name: str, watch: Callable[[str], None]) -> Callable[[str], None]:
    return lambda stage: watch(f"{name}: {stage}")


def stage_names(surrogates: list[str], *, square: bool) -> list[str]:
    """All stages in the order in which they run."""
    return [PLAIN, TRANSFER, *surrogates, REFINED, LONGER, *([SQUARE] if square else []), EVEN, DOUBLE]


def _cross(stage: str, base: Front, candidate: Front, *, steps: int, seed: int) -> None:
    """Each side gets the other's images as they were before."""
    theirs = {id(base): candidate.images.clone(), id(candidate): base.images.clone()}
    for front in (base, candidate):
        places = front.standing
        attack = Refine(theirs[id(front)][places], steps=steps)
        front.run(stage, front.best if steps else front.side.classifier, attack, seed=seed)


def _even(base: Front, candidate: Front, seed: int) -> None:
    """More restarts for whoever had fewer gradients per image that still stands, until both had as many."""
    again = APGD(steps=20, loss="margin")
    for number in range(MOST_ROUNDS):
        poor, rich = sorted((base, candidate), key=lambda front: front.effort)
        if not poor.standing or rich.effort - poor.effort < again.steps / 2:
            return
        poor.run(EVEN, poor.best, again, seed=seed + number)


def _in_double(base: Front, candidate: Front, seed: int) -> dict[str, int] | None:
    """The images that decide, where one side fell and the other stands, once more in float64.

    `flips` counts fallen images that float64 puts right; an image that float64 breaks falls if float32 agrees.
    """
    places = sorted(set(base.standing) ^ set(candidate.standing))
    doubles = {id(front): in_double(front.side.classifier) for front in (base, candidate)} if places else {}
    if any(model is None for model in doubles.values()):
        return None
    flips = broken = 0
    for front in (base, candidate):
        model = doubles.get(id(front))
        if model is None:
            continue
        fallen = [place for place in places if front.outcome[place] not in (ROBUST, MISCLASSIFIED)]
        flips += sum(_right(model, front, fallen))
        broken += _break_in_double(front, [place for place in places if front.outcome[place] == ROBUST], seed)
    return {"decide": len(places), "flips": flips, "broken": broken}


def _right(model: Classifier, front: Front, places: list[int]) -> list[bool]:
    if not places:
        return []
    with torch.no_grad():
        found: list[bool] = (model(front.images[places].double()).argmax(dim=1) == front.y[places]).tolist()
    return found


def _break_in_double(front: Front, places: list[int], seed: int) -> int:
    """How many standing images a float64 attack finds a point for that also fools the float32 classifier."""
    view = in_double(front.best)
    if view is None or not places:
        return 0
    at = torch.tensor(places, device=front.x.device)
    result = APGD(steps=20, loss="margin").run(
        view, front.x[at].double(), front.y[at], threat=front.threat, seed=seed, sample_ids=front.ids[at]
    )
    front.backwards[places] += result.backwards.cpu()
    front.gradients[DOUBLE] = int(result.backwards.sum())
    start, before = result.images.to(front.x.dtype), len(front.standing)
    whole = front.x.clone()
    whole[at] = start
    front.run(DOUBLE, front.side.classifier, Refine(whole[front.standing], steps=0), seed=seed)
    return before - len(front.standing)


@torch.no_grad()
def _judged(front: Front, images: Tensor) -> list[bool]:
    """Which images (N,) the side's classifier gets right."""
    right: list[bool] = (front.side.classifier(images).argmax(dim=1) == front.y).tolist()
    return right


@torch.no_grad()
def _same_logits(base: Front, candidate: Front) -> bool:
    """Whether the two classifiers give equal logits, bit for bit, on their images as they are now."""
    return all(
        torch.equal(base.side.classifier(images), candidate.side.classifier(images))
        for images in (base.images, candidate.images)
    )


def _sheet(front: Front) -> dict[str, Any]:
    return {
        "outcome": front.outcome,
        "notes": list(front.notes),
        "square": front.square,
        "forwards": front.forwards,
        "backwards": front.backwards.tolist(),
        "gradients": front.gradients,
    }
