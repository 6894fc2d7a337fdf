"""Every attack of the audit on one shard of images: the union of what they break is what counts."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks import APGD, Square
from lipforge.audit.double import decide_in_double
from lipforge.audit.front import Front
from lipforge.audit.plan import Plan
from lipforge.audit.refine import Refine
from lipforge.audit.stages import EVEN, LONGER, PLAIN, REFINED, SQUARE, TRANSFER
from lipforge.audit.subjects import Pair
from lipforge.types import Threat

MOST_ROUNDS = 20
"""How often the side with fewer gradients per standing image is attacked again, at most."""
NEARLY = 10
"""A gap in gradients per standing image that is left as it is."""
LONGEST = 100
"""Steps of one restart that makes up for a gap, at most."""


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
    transfer = {"base": base.judge(candidate.images), "candidate": candidate.judge(base.images)}
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
    even_budget(base, candidate, plan.seed + len(names) + 2)
    precision = decide_in_double(base, candidate, plan.seed)
    return {
        "base": base.sheet(),
        "candidate": candidate.sheet(),
        "same": same,
        "transfer": transfer,
        "precision": precision,
        "seconds": time.perf_counter() - started,
    }


def _named(name: str, watch: Callable[[str], None]) -> Callable[[str], None]:
    return lambda stage: watch(f"{name}: {stage}")


def _cross(stage: str, base: Front, candidate: Front, *, steps: int, seed: int) -> None:
    """Each side gets the other's images as they were before."""
    theirs = {id(base): candidate.images.clone(), id(candidate): base.images.clone()}
    for front in (base, candidate):
        places = front.standing
        attack = Refine(theirs[id(front)][places], steps=steps)
        front.run(stage, front.best if steps else front.side.classifier, attack, seed=seed)


def even_budget(base: Front, candidate: Front, seed: int) -> None:
    """As many gradients as are missing for whoever had fewer per image that still stands, until both had as many."""
    for number in range(MOST_ROUNDS):
        poor, rich = sorted((base, candidate), key=lambda front: front.effort)
        gap = round(rich.effort - poor.effort)
        if not poor.standing or gap < NEARLY:
            return
        restarts = max(1, gap // LONGEST)
        again = APGD(steps=min(gap, LONGEST), restarts=restarts, loss="margin")
        poor.run(EVEN, poor.best, again, seed=seed + number)


@torch.no_grad()
def _same_logits(base: Front, candidate: Front) -> bool:
    """Whether the two classifiers give equal logits, bit for bit, on their images as they are now."""
    return all(
        torch.equal(base.side.classifier(images), candidate.side.classifier(images))
        for images in (base.images, candidate.images)
    )
