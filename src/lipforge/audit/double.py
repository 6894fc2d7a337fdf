"""The images that decide, once more in float64: a verdict must not be one of rounding."""

import torch
from torch import nn

from lipforge.attacks import APGD
from lipforge.attacks.queries import is_fooled
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.audit.front import Front
from lipforge.audit.refine import Refine
from lipforge.audit.stages import DOUBLE
from lipforge.audit.subjects import borrow, in_double
from lipforge.types import Classifier


def decide_in_double(base: Front, candidate: Front, seed: int) -> dict[str, int] | None:
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
        broken += _break_in_double(front, model, [place for place in places if front.outcome[place] == ROBUST], seed)
    return {"decide": len(places), "flips": flips, "broken": broken}


def _right(model: Classifier, front: Front, places: list[int]) -> list[bool]:
    if not places:
        return []
    found: list[bool] = (~is_fooled(model, front.images[places].double(), front.y[places])).tolist()
    return found


def _best_in_double(front: Front, model: nn.Module) -> Classifier:
    """The best view in float64; `model`, the side's own classifier in float64, if its source is no module."""
    view = in_double(front.best)
    if view is not None:
        return view
    # A borrowed gradient is a function, which cannot be converted; what it is made of can.
    source = in_double(front.side.sources[front.best_name])
    return model if source is None else borrow(model, source)


def _break_in_double(front: Front, model: nn.Module, places: list[int], seed: int) -> int:
    """How many standing images a float64 attack finds a point for that also fools the float32 classifier."""
    if not places:
        return 0
    view = _best_in_double(front, model)
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
