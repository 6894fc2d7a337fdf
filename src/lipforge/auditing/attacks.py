"""Every attack of the audit on one shard of images: what counts is the union of what they break."""

import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from lipforge.attacks import APGD, Attack, Refine, Square
from lipforge.attacks.masking import masked_images
from lipforge.attacks.queries import Prepared, is_misclassified, logits_of
from lipforge.auditing.pairs import Pair, Side, borrow, in_double
from lipforge.auditing.plan import (
    DOUBLE,
    EQUAL,
    LONGER,
    NON_ADAPTIVE,
    OWN,
    REFINED,
    SQUARE,
    TARGETED,
    TRANSFER,
    YOURS,
    Plan,
)
from lipforge.evaluation.robust import classified, unbroken
from lipforge.memory import in_batches
from lipforge.results import MISCLASSIFIED, ROBUST, Note
from lipforge.runs import Shard
from lipforge.types import Classifier, Threat

MOST_ROUNDS = 20  # how often the side with fewer gradients per robust image is attacked again, at most
NEARLY = 10  # a difference in gradients per robust image that is left as it is
LONGEST = 100  # steps of one restart that makes up for a difference, at most
LOOKED = 23  # forwards on a robust image that tell whether one view predicts it, the clean image's included


def attack_shard(
    pair: Pair,
    shard: Shard,
    prepared: tuple[Classifier, Classifier],
    *,
    threat: Threat,
    plan: Plan,
    watch: Callable[[str], None] = lambda stage: None,
) -> dict[str, Any]:
    """The outcome of each image of a shard on both sides, ready for JSON; `watch` is told each stage as it begins.
    `prepared` are base and candidate as the non-adaptive attack wants them: `plan.non_adaptive.prepared`."""
    started = time.perf_counter()
    base = AttackedSide(pair.base, shard, threat, lambda stage: watch(f"base: {stage}"))
    candidate = AttackedSide(pair.candidate, shard, threat, lambda stage: watch(f"candidate: {stage}"))
    found = _run_stages(base, candidate, prepared, plan)
    summaries = {"base": base.summary(), "candidate": candidate.summary()}
    return {**summaries, **found, "seconds": time.perf_counter() - started}


def _run_stages(
    base: "AttackedSide", candidate: "AttackedSide", prepared: tuple[Classifier, Classifier], plan: Plan
) -> dict[str, Any]:
    """Run all stages in order, both sides alike: whether both are the `same` function, on which images the candidate
    withstands the points `transferred` from the base's non-adaptive attack, and what float64 changed (`double`)."""
    sides, views, seed = (base, candidate), list(candidate.side.views), plan.seed
    for side, classifier in zip(sides, prepared, strict=True):
        side.attack(NON_ADAPTIVE, classifier, plan.non_adaptive, seed=seed)
    same, transferred = _same_function(base, candidate), candidate.correct(base.images)
    _exchange(TRANSFER, base, candidate, steps=0, seed=seed)
    for number, view in enumerate(views, start=1):
        for side in sides:
            side.attack(view, side.side.views[view], plan.adaptive, seed=seed + number)
    _exchange(REFINED, base, candidate, steps=plan.refine, seed=seed)
    for side in sides:
        if plan.extra is not None:
            side.attack(YOURS, side.side.classifier, plan.extra, seed=seed)
        side.attack(LONGER, side.best, plan.longer, seed=seed + len(views) + 1)
        if plan.square:
            side.attack(SQUARE, side.side.classifier, Square(queries=plan.square), seed=seed)
    equal_budget(base, candidate, seed + len(views) + 2)
    if plan.targeted is not None:
        attack_what_decides(base, candidate, plan.targeted, seed)
    double = attack_in_double(base, candidate, seed)
    for side in sides:
        side.look_for_masks()
    return {"same": same, "transferred": transferred, "double": double}


class AttackedSide:
    """One side of the audit on one shard: which images are robust, what broke the others, and what that took. `images`
    are the strongest points found so far. Labels that the classifier does not know and NaN are errors."""

    def __init__(self, side: Side, shard: Shard, threat: Threat, watch: Callable[[str], None] = lambda stage: None):
        self.side, self.shard, self.threat, self.watch = side, shard, threat, watch
        self.clean_logits, correct = classified(side.classifier, shard)
        self.outcome = unbroken(correct)
        self.images = shard.x.clone()
        self.forwards = len(shard.x)
        self.backwards = torch.zeros(len(shard.x), dtype=torch.int64)
        self.gradients: dict[str, int] = {}
        self.early_stopped: dict[str, set[int]] = {}
        self.never_stopped: set[int] = set()
        self.masked: dict[str, int] = {}
        self.notes: list[tuple[str, Note]] = []

    @property
    def robust(self) -> list[int]:
        """The positions of the images that nothing has broken yet."""
        return [position for position, outcome in enumerate(self.outcome) if outcome == ROBUST]

    @property
    def effort(self) -> float:
        """Gradients per robust image."""
        return float(self.backwards[self.robust].double().mean()) if self.robust else 0.0

    @property
    def best_name(self) -> str:
        """The view whose gradients broke most images so far; the first of equals."""
        return max(self.side.views, key=self.outcome.count)

    @property
    def best(self) -> Classifier:
        return self.side.views[self.best_name]

    def attack(
        self, stage: str, classifier: Classifier, attack: Attack, *, seed: int, only: Collection[int] | None = None
    ) -> None:
        """Attack the robust images, or of these only some, which does not count as effort spent on this side; every
        classifier here has the side's own logits, and those decide on success."""
        positions = [position for position in self.robust if only is None or position in only]
        if not positions:
            return
        self.watch(stage)
        at = torch.tensor(positions, device=self.shard.x.device)
        (x, y, ids), clean = self.shard.at(at), self.clean_logits[at]
        result = attack.run(classifier, x, y, threat=self.threat, seed=seed, sample_ids=ids, clean_logits=clean)
        self.images[at] = result.images
        self.forwards += int(result.forwards.sum())
        self.gradients[stage] = self.gradients.get(stage, 0) + int(result.backwards.sum())
        if only is None:
            self.backwards[positions] += result.backwards.cpu()
        self.early_stopped[stage] = set(at[result.early_stopped].tolist())
        self.notes += [(stage, note) for note in result.notes]
        for position in at[result.broken].tolist():
            self.outcome[position] = stage

    def look_for_masks(self, further: Mapping[str, Classifier] = MappingProxyType({})) -> None:
        """Count for each view the robust images on which neither its gradients nor those of a view before it predict
        the side's logits, up to the view that leaves none."""
        at, looked = torch.tensor(self.robust, dtype=torch.int64, device=self.shard.x.device), set()
        for name, view in {OWN: self.side.classifier, **self.side.views, **further}.items():
            view = view.original if isinstance(view, Prepared) else view
            if len(at) and id(view) not in looked:  # one classifier may be several views
                self.forwards += LOOKED * len(at)
                at = at[self._masked(view, self.shard.at(at))]
                looked.add(id(view))
            self.masked[name] = len(at)
            if not len(at):
                return

    def _masked(self, view: Classifier, shard: Shard) -> Tensor:
        def masked(rows: slice) -> Tensor:
            x, y, ids = (part[rows] for part in shard)
            return masked_images(view, x, y, threat=self.threat, seed=0, sample_ids=ids)

        return torch.cat(in_batches(masked, shard.x, "attack"))

    def correct(self, images: Tensor) -> list[bool]:
        """Which images (N,) the side's classifier puts into the true class."""
        return [not wrong for wrong in is_misclassified(self.side.classifier, images, self.shard.y).tolist()]

    def summary(self) -> dict[str, Any]:
        """What the report needs of this side, ready for JSON; `early_stopped` has by stage the positions of the
        images robust at the end that it stopped early, `always_early_stopped` counts those that every gradient attack
        did. `masked` counts by view the robust images that no gradients up to it predict."""
        robust = set(self.robust)
        stages = (NON_ADAPTIVE, *self.side.views, LONGER)
        return {
            "outcome": self.outcome,
            "notes": self.notes,
            "early_stopped": {stage: sorted(at & robust) for stage, at in self.early_stopped.items()},
            "always_early_stopped": len(
                robust.intersection(*(self.early_stopped.get(name, set()) for name in stages)) - self.never_stopped
            ),
            "forwards": self.forwards,
            "backwards": self.backwards.tolist(),
            "gradients": self.gradients,
            "masked": self.masked,
        }


@torch.no_grad()
def _same_function(base: AttackedSide, candidate: AttackedSide) -> bool:
    """Whether both give equal logits, bit for bit, on the clean images and on equal adversarial ones."""
    if not torch.equal(base.clean_logits, candidate.clean_logits) or not torch.equal(base.images, candidate.images):
        return False
    return torch.equal(*(logits_of(each.side.classifier, base.images) for each in (base, candidate)))


def _exchange(stage: str, base: AttackedSide, candidate: AttackedSide, *, steps: int, seed: int) -> None:
    """Attack each side from the adversarial images of the opposite one, as they were before."""
    starts = candidate.images.clone(), base.images.clone()
    for side, start in zip((base, candidate), starts, strict=True):
        attack = Refine(start[side.robust], steps=steps)
        side.attack(stage, side.best if steps else side.side.classifier, attack, seed=seed)


def equal_budget(base: AttackedSide, candidate: AttackedSide, seed: int) -> None:
    """As many gradients as are missing for the side that had fewer per robust image, until both had as many."""
    for number in range(MOST_ROUNDS):
        fewer, more = sorted((base, candidate), key=lambda side: side.effort)
        missing = round(more.effort - fewer.effort)
        if not fewer.robust or missing < NEARLY:
            return
        again = APGD(steps=min(missing, LONGEST), restarts=max(1, missing // LONGEST), loss="margin")
        fewer.attack(EQUAL, fewer.best, again, seed=seed + number)


def attack_what_decides(base: AttackedSide, candidate: AttackedSide, attack: Attack, seed: int) -> None:
    """`attack`, which stops early on no image, on the images that are robust on one side only: through that side's
    first view, and through the one that broke most images if it is another."""
    decide = set(base.robust) ^ set(candidate.robust)
    for side in (base, candidate):
        side.never_stopped |= decide
        for view in dict.fromkeys((next(iter(side.side.views)), side.best_name)):
            side.attack(TARGETED, side.side.views[view], attack, seed=seed, only=decide)


def attack_in_double(base: AttackedSide, candidate: AttackedSide, seed: int) -> dict[str, int] | None:
    """The images that decide, robust on one side only, once more in float64: a verdict must not be one of rounding.
    `flips` counts broken images that float64 puts right; an image that float64 breaks is broken if float32 agrees. None
    for a side that cannot be converted."""
    decide = sorted(set(base.robust) ^ set(candidate.robust))
    sides = [(side, in_double(side.side.classifier, side.shard.x[:1])) for side in (base, candidate)] if decide else []
    modules = [(side, model) for side, model in sides if model is not None]
    if len(modules) < len(sides):
        return None
    flips = broken = 0
    for side, model in modules:
        was_broken = [at for at in decide if side.outcome[at] not in (ROBUST, MISCLASSIFIED)]
        if was_broken:
            points = side.images[was_broken].double()
            flips += int((~is_misclassified(model, points, side.shard.y[was_broken])).sum())
        broken += _break_in_double(side, model, [at for at in decide if side.outcome[at] == ROBUST], seed)
    return {"decide": len(decide), "flips": flips, "broken": broken}


def _break_in_double(side: AttackedSide, model: nn.Module, positions: list[int], seed: int) -> int:
    """How many robust images a float64 attack finds a point for that also fools the float32 classifier."""
    if not positions:
        return 0
    at = torch.tensor(positions, device=side.shard.x.device)
    x, y, ids = side.shard.at(at)
    view: Classifier | None = in_double(side.best, x[:1])
    if view is None:
        # A borrowed gradient is a function, which cannot be converted; what it is made of can, if that is a module.
        source = in_double(side.side.sources[side.best_name], x[:1])
        view = model if source is None else borrow(model, source)
    attack = APGD(steps=20, loss="margin")
    result = attack.run(view, x.double(), y, threat=side.threat, seed=seed, sample_ids=ids)
    side.gradients[DOUBLE] = int(result.backwards.sum())
    start, before = side.shard.x.clone(), side.robust
    start[at] = result.images.to(start.dtype)
    side.attack(DOUBLE, side.side.classifier, Refine(start[before], steps=0), seed=seed)
    return len(before) - len(side.robust)
