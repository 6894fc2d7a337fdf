"""The paper's checklist against masked gradients, and ours: measurements on a few images, and checks with evidence.
Unless a check says otherwise it is about the candidate, on the first images of the audit; counts are of images."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks import CW, FGSM, PGD, Attack, Square, cross_entropy, margin_loss, norms
from lipforge.attacks.queries import forward, is_misclassified
from lipforge.auditing.pairs import Pair
from lipforge.auditing.plan import Plan
from lipforge.forge import Fold
from lipforge.memory import in_batches
from lipforge.outputs import logits_in
from lipforge.results import BracketResult, CertifyResult, Check, Note, compare_brackets
from lipforge.runs import Shard
from lipforge.text import eps_text
from lipforge.types import Classifier, Threat

FURTHEST = 96 / 255  # the last radius of the linf sweep, as in the paper; other norms go to 12 times eps
DIRECTIONS = 8  # random directions that a step along the gradient must beat
ALONE = 0.005  # share of images that a weaker attack may break alone: attacks of equal strength differ by chance
ALONG = 0.9  # share of images on which the gradient must beat random directions
MARGIN_PGD = PGD(steps=20, loss="margin")
SHARD = 25  # images that are measured together: few, so that several processes have work
UNEVEN, FEW = 0.1, 20  # share by which one side may have had fewer gradients, and how many: the float64 attack's
TERMS = ("sigma", "n0", "n", "alpha", "seed", "only_correct", "data_digest")  # what certificates must share


def measure(pair: Pair, shard: Shard, *, left: Sequence[bool], threat: Threat, plan: Plan) -> dict[str, Any]:
    """Everything the checklist needs beyond the attacks of the audit, ready for JSON: numbers only, no judgement.
    `left` says which images the non-adaptive attack leaves; Square looks at these only. Nothing here runs on a folded
    copy, which might mislead it as it may have misled the attacks."""
    base, candidate, seed = pair.base.classifier, pair.candidate.classifier, plan.seed

    def robust(attack: Attack, radius: float = threat.eps) -> list[bool]:
        return _robust(candidate, attack, shard, Threat(threat.norm, radius), seed)

    def robust_to_transfer(attack: Attack) -> list[bool]:
        crafted = attack.run(base, shard.x, shard.y, threat=threat, seed=seed, sample_ids=shard.ids).images
        clean, found = (~is_misclassified(candidate, images, shard.y) for images in (shard.x, crafted))
        return list((clean & found).tolist())

    at = torch.tensor(left, device=shard.x.device).nonzero().squeeze(1)
    square = iter(_robust(candidate, Square(queries=plan.check_queries), shard.at(at), threat, seed))
    cw = None if norms.of(threat).sparse else CW(steps=30)
    return {
        "fgsm": robust(FGSM()),
        "pgd": robust(PGD(steps=20)),
        "square": [not one or next(square) for one in left],
        "cw": cw and robust(cw),
        "cw_on_base": cw and robust_to_transfer(cw),
        "sweep": [[radius, sum(robust(MARGIN_PGD, radius))] for radius in radii(threat)],
        "box": norms.of(threat).box,
        "directions": _directions(candidate, shard, threat, seed),
        "zero_gradients": _zero_gradients(candidate, shard),
    }


def joined(shards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The measurements of several shards as those of all their images."""
    first, found = shards[0], {}
    for name in ("fgsm", "pgd", "square", "cw", "cw_on_base", "directions"):
        found[name] = first[name] and [one for shard in shards for one in shard[name]]
    radius_counts = zip(*(shard["sweep"] for shard in shards), strict=True)
    found["sweep"] = [[points[0][0], sum(count for _, count in points)] for points in radius_counts]
    zeros = zip(*(shard["zero_gradients"] for shard in shards), strict=True)
    return {**found, "box": first["box"], "zero_gradients": [sum(each) for each in zeros]}


def measure_fold(
    pair: Pair, weight: nn.Module, fold: Fold, shard: Shard, *, threat: Threat, plan: Plan
) -> dict[str, Any]:
    """How many images PGD leaves on the base, on its "+ Weight" model and on the candidate, and what was zeroed."""
    base, candidate = pair.base.classifier, pair.candidate.classifier
    sides: dict[str, Classifier] = {"base": base, "weight": weight, "candidate": candidate}
    left = {name: sum(_robust(side, MARGIN_PGD, shard, threat, plan.seed)) for name, side in sides.items()}
    counts = {"images": fold.counts.images_seen, "data": fold.counts.data, "frequency": fold.frequency}
    return {**left, **counts, "columns": sum(map(len, fold.columns.values())), "count": len(shard.x)}


def _robust(classifier: Classifier, attack: Attack, shard: Shard, threat: Threat, seed: int) -> list[bool]:
    result = attack.run(classifier, shard.x, shard.y, threat=threat, seed=seed, sample_ids=shard.ids)
    return [not broken for broken in result.broken.tolist()]


def radii(threat: Threat) -> list[float]:
    """Radii that double from eps on, the last of them 96/255 (for linf) or 12 eps.

    >>> [round(255 * radius) for radius in radii(Threat("linf", "8/255"))]
    [8, 16, 32, 64, 96]
    """
    last = max(FURTHEST, threat.eps) if norms.of(threat).box else 12 * threat.eps
    doubled = (threat.eps * 2**number for number in itertools.count())
    return [*itertools.takewhile(lambda radius: radius < last * (1 - 1e-9), doubled), last]


def _directions(classifier: Classifier, shard: Shard, threat: Threat, seed: int) -> list[bool]:
    """For each image, whether a step along the gradient lowers the margin more than every random step of that size."""
    (x, y, ids), norm = shard, norms.of(threat)

    @torch.no_grad()
    def loss_along(direction: Tensor) -> Tensor:
        return margin_loss(forward(classifier, norm.step(x, direction, threat.eps, x, threat.eps)), y)

    best = torch.full_like(y, -torch.inf, dtype=x.dtype)
    for number in range(DIRECTIONS):
        noise = rng.normal(seed, ids, stream="audit-directions", shape=x.shape[1:], counter=number, dtype=x.dtype)
        best = torch.maximum(best, loss_along(noise))
    return list((loss_along(_gradient(classifier, x, y, margin_loss)) > best).tolist())


def _zero_gradients(classifier: Classifier, shard: Shard) -> list[int]:
    """How many images have a cross-entropy gradient of exactly 0, how many entries are 0, and out of how many."""
    zero = _gradient(classifier, shard.x, shard.y, cross_entropy) == 0
    return [int(zero.flatten(1).all(dim=1).sum()), int(zero.sum()), zero.numel()]


def _gradient(classifier: Classifier, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    def slope(rows: slice) -> Tensor:
        point = x[rows].detach().clone().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(loss(logits_in(classifier(point)), y[rows]).sum(), point)[0]

    return torch.cat(in_batches(slope, x, "attack"))


def checklist(measured: Mapping[str, Any], non_adaptive: Sequence[bool], transfer: Sequence[bool]) -> tuple[Check, ...]:
    """The checks on the first images, from their measurements; `non_adaptive` and `transfer` say of all images of the
    audit whether they are robust to the non-adaptive attack and to the adversarial images of the base."""
    count = len(measured["fgsm"])
    return (
        white_box(non_adaptive[:count], measured["square"]),
        one_step(measured["fgsm"], measured["pgd"]),
        sweep(measured["sweep"], count),
        transferred(non_adaptive, transfer),
        weight_variant(measured.get("fold")),
        carlini_wagner(measured["cw"], measured["cw_on_base"]),
        along_the_gradient(measured["directions"]),
        zero_gradients(measured["zero_gradients"], count),
    )


def masking(measured: Mapping[str, Any], non_adaptive: Sequence[bool]) -> tuple[Check, ...]:
    """Those of the list on the first images without which no gain is claimed; `non_adaptive` says which images that
    attack leaves. The sweep counts in a box only: elsewhere an honest net may keep images at its last radius."""
    count = len(measured["fgsm"])
    swept = (sweep(measured["sweep"], count),) if measured["box"] else ()
    return white_box(non_adaptive[:count], measured["square"]), one_step(measured["fgsm"], measured["pgd"]), *swept


def white_box(non_adaptive: Sequence[bool], square: Sequence[bool]) -> Check:
    """Square, without gradients, must not break what the non-adaptive attack leaves."""
    alone, left = _only(square, non_adaptive), f"{sum(non_adaptive)} of {len(non_adaptive)}"
    text = f"the non-adaptive attack leaves {left}; square breaks {alone} of these"
    return Check("white box at least as strong as black box", alone <= ALONE * len(non_adaptive), text)


def one_step(fgsm: Sequence[bool], pgd: Sequence[bool]) -> Check:
    text = f"FGSM leaves {sum(fgsm)} of {len(fgsm)}, PGD with 20 steps {sum(pgd)}"
    return Check("iterative at least as strong as one step", sum(pgd) <= sum(fgsm), text)


def sweep(points: Sequence[Sequence[float]], count: int) -> Check:
    """PGD must break more with every radius, and everything at the last."""
    left = [int(robust) for _, robust in points]
    falls = all(far <= near for near, far in itertools.pairwise(left))
    text = ", ".join(f"{robust:.0f} at {eps_text(radius)}" for radius, robust in points)
    return Check("accuracy falls to 0 as eps grows", falls and left[-1] == 0, f"of {count}: {text}")


def transferred(non_adaptive: Sequence[bool], transfer: Sequence[bool]) -> Check:
    """The base's adversarial images must not break what the candidate's own gradients leave; on all images."""
    alone, share = _only(transfer, non_adaptive), ALONE * len(non_adaptive)
    left = f"{sum(transfer)} of {len(transfer)}, on the candidate {sum(non_adaptive)}"
    text = f"images crafted on the base leave {left}; the base's alone break {alone}"
    return Check("own gradients at least as strong as transfer from the base", alone <= share, text)


def weight_variant(measured: Mapping[str, Any] | None) -> Check:
    """The model with zeroed weights has no mask that could hide a gradient: it must be no worse than the base.
    Zeros are counted on calibration images, which an audit does not have: it needs a fold."""
    name = '"+ Weight" variant no worse than the base'
    if measured is None:
        return Check(name, None, "needs a fold of the forged model: `lipforge fold` on calibration images, then --fold")
    often = f"zero at least {100 * measured['frequency']:g} % of the time on {measured['images']} images"
    often += f" of {measured['data']}" if measured["data"] else ""
    if not measured["columns"]:
        return Check(name, None, f"no input is {often}, so no column is zeroed; fold at a lower frequency")
    left = "base {base}, weight {weight}, forged {candidate} of {count}".format(**measured)
    text = f"{measured['columns']} columns zeroed, of inputs that are {often}; PGD with 20 steps leaves {left}"
    return Check(name, measured["weight"] >= measured["base"], text)


def carlini_wagner(cw: Sequence[bool] | None, transfer: Sequence[bool] | None) -> Check:
    name = "CW at least as strong as transfer"
    if cw is None or transfer is None:
        return Check(name, None, "CW has no form in this norm")
    text = f"CW leaves {sum(cw)} of {len(cw)}, its images crafted on the base {sum(transfer)}"
    return Check(name, sum(cw) <= sum(transfer), text)


def along_the_gradient(better: Sequence[bool]) -> Check:
    """A step along the gradient must lower the margin more than random steps of the same size."""
    text = f"on {sum(better)} of {len(better)} images the gradient beats the best of {DIRECTIONS} random directions"
    return Check("loss rises most along the gradient", sum(better) >= ALONG * len(better), text)


def zero_gradients(counts: Sequence[int], count: int) -> Check:
    images, entries, size = counts
    text = f"{images} of {count} images have a gradient of exactly 0; {100 * entries / max(size, 1):.2f} % of entries"
    return Check("no input gradient is exactly 0", images == 0, text)


def equal_effort(spent: Sequence[tuple[int, float, int, float]]) -> Check:
    """Both sides must have had as many gradients per robust image, on all images. `spent` has for each shard the images
    robust on the base and their mean gradients, then the candidate's. A shard weighs the same on both sides, so that
    one in which only one side has robust images does not count."""
    name = "both sides had as many gradients per robust image"
    weights = [min(base, candidate) for base, _, candidate, _ in spent]
    if not any(weights):
        return Check(name, None, "no images are robust on both sides")
    base, candidate = (
        sum(weight * shard[at] for weight, shard in zip(weights, spent, strict=True)) / sum(weights) for at in (1, 3)
    )
    even = abs(base - candidate) <= max(UNEVEN * max(base, candidate), FEW)
    return Check(name, even, f"base {base:.0f}, candidate {candidate:.0f}")


def attack_flags(notes: Sequence[Note], condemned: Sequence[Note] | None = None) -> Check:
    """The non-adaptive attack must have no note on the candidate that makes its number unreliable, on all images."""
    text = "; ".join(str(note) for note in notes)
    failed = notes if condemned is None else condemned
    return Check("no flag of the non-adaptive attack", not failed, text or "none raised")


def precision(counts: Mapping[str, int] | None) -> Check:
    name = "float64 agrees with float32 on the images that decide"
    if counts is None:
        return Check(name, None, "a classifier that is no module, or gives no gradient, is not attacked in float64")
    decide, flips, broken = counts["decide"], counts["flips"], counts["broken"]
    text = f"{decide} images decide; in float64, {flips} broken images are correct again and {broken} more are broken"
    return Check(name, flips == broken == 0, text)


def smoothing(results: Sequence[CertifyResult], base: str, candidate: str) -> Check:
    """Certified accuracy of the candidate must be no lower than the base's, where a run has both on the same terms; the
    digests `base` and `candidate` say whose: certificates of other models, or at another ratio, do not count."""
    name = "certified accuracy no lower than the base's"
    ones, others = ([each for each in results if each.model_digest == digest] for digest in (base, candidate))
    if not ones or not others:
        return Check(name, None, "the run has no certificates of these two models; lipforge certify makes them")
    pairs = [(a, b) for a in ones for b in others if all(getattr(a, term) == getattr(b, term) for term in TERMS)]
    if not pairs:
        return Check(name, None, f"the certificates of the two differ in one of {', '.join(TERMS)}")
    found = [
        (a.sigma, ours.radius, ours.accuracy, theirs.accuracy)
        for a, b in pairs
        for ours in a.curve
        for theirs in b.curve
        if ours.radius == theirs.radius
    ]
    if not found:
        return Check(name, None, "the certificates of the two have no radius in common")
    texts = [f"{100 * a:.1f} and {100 * b:.1f} at {radius:g} (sigma {sigma:g})" for sigma, radius, a, b in found]
    return Check(name, all(b >= a for *_, a, b in found), f"base and candidate: {', '.join(texts)}")


def bracket(results: Sequence[BracketResult], base: str, candidate: str, threat: Threat) -> Check:
    """No certified bracket may prove the base more robust, where a run has those of both models under this threat; it
    passes only where one proves the candidate more robust."""
    name = "no bracket proves the base more robust"
    here = [each for each in results if (each.norm, each.eps) == (threat.norm, threat.eps)]
    ones, others = ([each for each in here if each.model_digest == digest] for digest in (base, candidate))
    terms = ("attack", "seed", "method", "count", "data_digest")
    pairs = [(a, b) for a in ones for b in others if all(getattr(a, term) == getattr(b, term) for term in terms)]
    if not pairs:
        return Check(name, None, f"the run has no brackets of the two at {threat}; lipforge bracket makes them")
    found = [compare_brackets(*pair) for pair in pairs]
    decided = {each.decides for each in found} - {None}
    passed = "base" not in decided if decided else None
    return Check(name, passed, "; ".join(map(str, found)))


def _only(weak: Sequence[bool], strong: Sequence[bool]) -> int:
    """How many images the first attack breaks and the second does not."""
    return sum(not a and b for a, b in zip(weak, strong, strict=True))
