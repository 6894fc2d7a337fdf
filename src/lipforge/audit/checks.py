"""The paper's checklist against masked gradients, and ours: measurements in, checks with evidence out.

Unless a check says otherwise it is about the candidate, on the first images of the audit; counts are of images.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lipforge.audit.report import Check

ALONE = 0.005
"""Share of the images that a weaker attack may break alone: two attacks of equal strength differ by chance."""
TERMS = ("sigma", "n0", "n", "alpha", "seed", "only_correct", "data_digest")
"""What two certificates must share to be compared."""
ALONG = 0.9
"""Share of images on which the gradient must beat random directions."""

UNEVEN = 0.1
"""Share of the gradients by which one side may have had fewer."""
FEW = 20
"""Gradients that one side may have had more whatever the share: the float64 attack on the images that decide."""


def checklist(measured: Mapping[str, Any], plain: Sequence[bool], transfer: Sequence[bool]) -> tuple[Check, ...]:
    """The checks on the first images, from their measurements.

    `plain` are the images that stand against the plain attack, `transfer` those that stand against the adversarial
    images of the base; both of all images of the audit.
    """
    count = len(measured["fgsm"])
    return (
        white_box(plain[:count], measured["square"]),
        one_step(measured["fgsm"], measured["pgd"]),
        sweep(measured["sweep"], count),
        transferred(plain, transfer),
        weight_variant(measured, count),
        carlini_wagner(measured["cw"], measured["cw_of_base"]),
        along_the_gradient(measured["directions"]),
        zero_gradients(measured["zero_gradients"], count),
    )


def white_box(plain: Sequence[bool], square: Sequence[bool]) -> Check:
    """Square, without gradients, must not break what the plain attack leaves."""
    alone = _only(square, plain)
    text = f"plain attack leaves {sum(plain)} of {len(plain)}, square {sum(square)}; square alone breaks {alone}"
    return Check("white box at least as strong as black box", alone <= ALONE * len(plain), text)


def one_step(fgsm: Sequence[bool], pgd: Sequence[bool]) -> Check:
    """PGD must leave no more than FGSM."""
    text = f"FGSM leaves {sum(fgsm)} of {len(fgsm)}, PGD with 20 steps {sum(pgd)}"
    return Check("iterative at least as strong as one step", sum(pgd) <= sum(fgsm), text)


def sweep(points: Sequence[Sequence[float]], count: int) -> Check:
    """PGD must break more with every radius, and everything at the last."""
    left = [int(standing) for _, standing in points]
    falls = all(far <= near for near, far in pairwise(left))
    text = ", ".join(f"{standing:.0f} at {255 * radius:.3g}/255" for radius, standing in points)
    return Check("accuracy falls to 0 as eps grows", falls and left[-1] == 0, f"of {count}: {text}")


def transferred(plain: Sequence[bool], transfer: Sequence[bool]) -> Check:
    """The base's adversarial images must not break what the candidate's own gradients leave; on all images."""
    alone, share = _only(transfer, plain), ALONE * len(plain)
    text = (
        f"images made for the base leave {sum(transfer)} of {len(transfer)}, the candidate's own {sum(plain)}; "
        f"the base's alone break {alone}"
    )
    return Check("own gradients at least as strong as transfer from the base", alone <= share, text)


def weight_variant(measured: Mapping[str, Any], count: int) -> Check:
    """The model with zeroed weights has no mask that could hide a gradient: it must be no worse than the base."""
    name = '"+ Weight" variant no worse than the base'
    if measured["weight"] is None:
        return Check(name, None, "the candidate is not a forged model whose columns can be zeroed")
    if not measured["columns"]:
        return Check(name, None, "no input is forged to zero at least 95 % of the time, so no column is zeroed")
    base, weight, candidate = measured["base_pgd"], measured["weight"], measured["candidate_pgd"]
    text = (
        f"{measured['columns']} columns zeroed; PGD with 20 steps leaves base {base}, weight {weight}, "
        f"forged {candidate} of {count}"
    )
    return Check(name, weight >= base, text)


def carlini_wagner(cw: Sequence[bool], transfer: Sequence[bool]) -> Check:
    """CW on the candidate must leave no more than the images that CW made for the base."""
    text = f"CW leaves {sum(cw)} of {len(cw)}, its images for the base {sum(transfer)}"
    return Check("CW at least as strong as transfer", sum(cw) <= sum(transfer), text)


def along_the_gradient(better: Sequence[bool]) -> Check:
    """A step along the gradient must raise the margin more than random steps of the same size."""
    text = f"on {sum(better)} of {len(better)} images the gradient beats the best of 8 random directions"
    return Check("loss rises most along the gradient", sum(better) >= ALONG * len(better), text)


def zero_gradients(counts: Sequence[int], count: int) -> Check:
    """No image may have an input gradient of exactly 0."""
    images, entries, size = counts
    text = f"{images} of {count} images have a gradient of exactly 0; {100 * entries / max(size, 1):.2f} % of entries"
    return Check("no input gradient is exactly 0", images == 0, text)


def even_effort(spent: Sequence[tuple[int, float, int, float]]) -> Check:
    """Both sides must have had as many gradients per image that stands, on all images.

    `spent` has for each shard the images that stand on the base and their mean gradients, then the candidate's. Shards
    weigh the same on both sides, so that a shard in which only one side still has images does not count.
    """
    name = "both sides had as many gradients per image that stands"
    weights = [min(base, candidate) for base, _, candidate, _ in spent]
    if not any(weights):
        return Check(name, None, "no images stand on both sides")
    base, candidate = (
        sum(weight * shard[at] for weight, shard in zip(weights, spent, strict=True)) / sum(weights) for at in (1, 3)
    )
    even = abs(base - candidate) <= max(UNEVEN * max(base, candidate), FEW)
    return Check(name, even, f"base {base:.0f}, candidate {candidate:.0f}")


def autoattack_flags(notes: Sequence[str], square: int, count: int) -> Check:
    """AutoAttack's own warnings about the candidate, on all images."""
    found = list(dict.fromkeys(notes))
    if square > 0.002 * count:
        found.append(f"Square broke {square} of {count} images after the gradient attacks")
    return Check("no flag of AutoAttack", not found, "; ".join(found) or "none raised")


def precision(counts: Mapping[str, int] | None) -> Check:
    """Images that decide must not depend on rounding."""
    name = "float64 agrees with float32 on the images that decide"
    if counts is None:
        return Check(name, None, "a classifier that is no module cannot be converted")
    text = (
        f"{counts['decide']} images decide; float64 puts {counts['flips']} fallen ones right and breaks "
        f"{counts['broken']} more"
    )
    return Check(name, counts["flips"] == 0 and counts["broken"] == 0, text)


def smoothing(results: Sequence[Mapping[str, Any]], models: Mapping[str, str]) -> Check:
    """Certified accuracy of the candidate must be no lower than the base's, where a run has both on the same terms.

    `models` are the digests of "base" and "candidate": certificates of other models, or at another ratio, do not count.
    """
    name = "certified accuracy no lower than the base's"
    base, candidate = ([each for each in results if each["model_digest"] == models[side]] for side in models)
    if not base or not candidate:
        return Check(name, None, "the run has no certificates of these two models; lipforge certify makes them")
    pairs = [(one, two) for one in base for two in candidate if all(one[key] == two[key] for key in TERMS)]
    if not pairs:
        return Check(name, None, f"the certificates of the two differ in one of {', '.join(TERMS)}")
    found = [
        (one["sigma"], ours["radius"], ours["accuracy"], theirs["accuracy"])
        for one, two in pairs
        for ours in one["curve"]
        for theirs in two["curve"]
        if ours["radius"] == theirs["radius"]
    ]
    if not found:
        return Check(name, None, "the certificates of the two have no radius in common")
    text = ", ".join(
        f"{100 * a:.1f} and {100 * b:.1f} at {radius:g} (sigma {sigma:g})" for sigma, radius, a, b in found
    )
    return Check(name, all(b >= a for *_, a, b in found), f"base and candidate: {text}")


def _only(weak: Sequence[bool], strong: Sequence[bool]) -> int:
    """How many images the first attack breaks and the second does not."""
    return sum(not a and b for a, b in zip(weak, strong, strict=True))
