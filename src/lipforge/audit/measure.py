"""The measurements behind the checklist, on a few images: numbers only, no judgement."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks import CW, FGSM, PGD, Attack, Square, cross_entropy, margin
from lipforge.attacks.norms import project, steepest_step
from lipforge.attacks.queries import is_fooled
from lipforge.audit.plan import Plan
from lipforge.audit.subjects import Pair
from lipforge.errors import SiteError
from lipforge.forge import count_zeros, fold_, plain
from lipforge.types import Classifier, Threat

FURTHEST = 96 / 255
"""The last radius of the linf sweep, as in the paper; other norms go to 12 times eps, which is 96/255 for 8/255."""
DIRECTIONS = 8
FREQUENCY = 0.95
"""Inputs that are forged to zero at least this often lose their weights in the "+ Weight" variant."""


def measure(pair: Pair, x: Tensor, y: Tensor, ids: Tensor, *, threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything the checklist needs beyond the attacks of the audit, ready for JSON."""
    candidate, seed = pair.candidate.classifier, plan.seed

    def stands(classifier: Classifier, attack: Attack, radius: float = threat.eps) -> list[bool]:
        return _stands(classifier, attack, x, y, ids, Threat(threat.norm, radius), seed)

    pgd, cw = PGD(steps=20, loss="margin"), CW(steps=30)
    of_base = cw.run(pair.base.classifier, x, y, threat=threat, seed=seed, sample_ids=ids).images
    weights = _weight_variant(pair, x, y)
    return {
        "fgsm": stands(candidate, FGSM()),
        "pgd": stands(candidate, PGD(steps=20)),
        "square": stands(candidate, Square(queries=plan.check_queries)),
        "cw": stands(candidate, cw),
        "cw_of_base": _right(candidate, x, of_base, y),
        "sweep": [[radius, sum(stands(candidate, pgd, radius))] for radius in radii(threat)],
        "directions": _directions(candidate, x, y, ids, threat, seed),
        "zero_gradients": _zero_gradients(candidate, x, y),
        "columns": None if weights is None else weights[1],
        "weight": None if weights is None else sum(stands(weights[0], pgd)),
        "base_pgd": None if weights is None else sum(stands(pair.base.classifier, pgd)),
        "candidate_pgd": None if weights is None else sum(stands(candidate, pgd)),
    }


def radii(threat: Threat) -> list[float]:
    """Radii that double from eps on, the last of them 96/255 (for linf) or 12 eps.

    >>> [round(255 * radius) for radius in radii(Threat("linf", "8/255"))]
    [8, 16, 32, 64, 96]
    """
    last = max(FURTHEST, threat.eps) if threat.norm == "linf" else 12 * threat.eps
    found = []
    radius = threat.eps
    while radius < last * (1 - 1e-9):
        found.append(radius)
        radius *= 2
    return [*found, last]


def _stands(
    classifier: Classifier, attack: Attack, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, seed: int
) -> list[bool]:
    """Which images are right as they are, and after the attack."""
    right = ~is_fooled(classifier, x, y)
    standing = right.clone()
    if right.any():
        result = attack.run(classifier, x[right], y[right], threat=threat, seed=seed, sample_ids=ids[right])
        standing[right] = ~result.fooled
    found: list[bool] = standing.tolist()
    return found


def _right(classifier: Classifier, x: Tensor, made: Tensor, y: Tensor) -> list[bool]:
    """Which images the classifier gets right as they are, and as they were made for another."""
    found: list[bool] = (~is_fooled(classifier, x, y) & ~is_fooled(classifier, made, y)).tolist()
    return found


def _directions(classifier: Classifier, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, seed: int) -> list[bool]:
    """For each image, whether a step along the gradient raises the margin more than every random step of that size."""
    gradient = _gradient(classifier, x, y, margin)
    with torch.no_grad():

        def rise(direction: Tensor) -> Tensor:
            return margin(classifier(project(x + steepest_step(direction, threat, threat.eps), x, threat)), y)

        best = torch.full_like(y, -torch.inf, dtype=x.dtype)
        for number in range(DIRECTIONS):
            noise = rng.normal(seed, ids, stream="audit-directions", shape=x.shape[1:], counter=number, dtype=x.dtype)
            best = torch.maximum(best, rise(noise))
        found: list[bool] = (rise(gradient) > best).tolist()
    return found


def _zero_gradients(classifier: Classifier, x: Tensor, y: Tensor) -> list[int]:
    """How many images have a cross-entropy gradient of exactly 0, how many entries are 0, and out of how many."""
    zero = _gradient(classifier, x, y, cross_entropy) == 0
    return [int(zero.flatten(1).all(dim=1).sum()), int(zero.sum()), zero.numel()]


def _gradient(classifier: Classifier, x: Tensor, y: Tensor, loss: Any) -> Tensor:
    point = x.detach().clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(loss(classifier(point), y).sum(), point)
    return gradient


def _weight_variant(pair: Pair, x: Tensor, y: Tensor) -> tuple[nn.Module, int] | None:
    """The "+ Weight" model and how many columns it lost; None for a pair that is not one forged model."""
    if pair.model is None:
        return None
    copied = copy.deepcopy(pair.model)
    try:
        fold = fold_(copied, count_zeros(copied, x, show_progress=False), frequency=FREQUENCY)
    except SiteError:
        return None
    return plain(copied), sum(len(columns) for columns in fold.columns.values())
