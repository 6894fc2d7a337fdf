"""Who is audited: a base, a candidate, and for each the ways to get at its gradients."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipforge.attacks.checks import differs
from lipforge.attacks.queries import logits_of
from lipforge.auditing.plan import OWN, RESERVED, TRANSFERRED
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError, ModelError
from lipforge.forge import forged, plain, smooth_backward, straight_through
from lipforge.types import Classifier


@dataclass(frozen=True)
class Side:
    """A classifier, and views with its logits, bit for bit, and other gradients, by name and in the order to try them;
    `sources` are the classifiers whose gradients they pass on, which a view made by `borrow` does not show."""

    classifier: Classifier
    views: Mapping[str, Classifier]
    sources: Mapping[str, Classifier]


@dataclass(frozen=True)
class Pair:
    """Base and candidate with as many views each, and the forged model that both come from, if there is one."""

    base: Side
    candidate: Side
    model: nn.Module | None = None


def forged_pair(model: nn.Module) -> Pair:
    """The plain model against the forged one, with an identity and a smooth backward pass through every mask."""
    views = {"BPDA identity": straight_through(model), "BPDA smooth": smooth_backward(model)}
    return _pair(plain(model), forged(model), views, views, model)


def pair_of(base: Classifier, candidate: Classifier, surrogates: Mapping[str, Classifier] | None = None) -> Pair:
    """Any two classifiers; `surrogates` give gradients for the candidate, whose own logits decide on success."""
    surrogates = surrogates or {}
    if taken := [name for name in surrogates if name in RESERVED]:
        raise InputError(
            f"surrogates must have names of their own; {taken[0]!r} is taken, as are {', '.join(sorted(RESERVED))}"
        )
    for name, classifier in {"base": base, "candidate": candidate, **surrogates}.items():
        if not callable(classifier):
            raise InputError(f"{name} must be a classifier (images to logits), got {type(classifier).__name__}")
        if isinstance(classifier, nn.Module):
            check_eval(classifier)
    views = {OWN: candidate, **{name: borrow(candidate, source) for name, source in surrogates.items()}}
    return _pair(base, candidate, views, {OWN: candidate, **surrogates}, None)


def _pair(
    base: Classifier,
    candidate: Classifier,
    views: Mapping[str, Classifier],
    sources: Mapping[str, Classifier],
    model: nn.Module | None,
) -> Pair:
    """Each side also gets the gradients of the opposite one; the base has no masks: its further views are itself."""
    own = dict.fromkeys(views, base)
    return Pair(
        Side(base, {**own, TRANSFERRED: borrow(base, candidate)}, {**own, TRANSFERRED: candidate}),
        Side(candidate, {**views, TRANSFERRED: borrow(candidate, base)}, {**sources, TRANSFERRED: base}),
        model,
    )


def borrow(judge: Classifier, source: Classifier) -> Classifier:
    """A classifier with the logits of `judge`, bit for bit, and the gradients of `source`; one costs a forward through
    both and a backward through the source."""

    def borrowed(x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return judge(x)
        with torch.no_grad():
            logits = judge(x)
        lent = source(x)
        # lent - lent is exactly 0 wherever it is finite, so nothing is added to the logits.
        return logits + (lent - lent.detach())

    return borrowed


@torch.no_grad()
def classes_of(classifier: Classifier, data: ImageData) -> int:
    """How many classes the classifier knows, from its logits for the first image: labels may not name them all."""
    x, _ = data.batch([0])
    device = device_of(classifier) if isinstance(classifier, nn.Module) else x.device
    return logits_of(classifier, x.to(device)).shape[1]


@torch.no_grad()
def check_steady(name: str, classifier: Classifier, x: Tensor) -> None:
    """Raise if the classifier gives other logits when it is asked again: one lucky draw would count as broken."""
    if differs(logits_of(classifier, x), [logits_of(classifier, x) for _ in range(2)]):
        raise ModelError(
            f"{name} has random outputs, which an audit cannot judge: one unlucky draw would count as broken. Fix the "
            "randomness, or audit the mean of its logits over draws with fixed seeds; to attack a random model use "
            "lipforge evaluate --attack autoattack:version=rand"
        )


def in_double(classifier: Classifier) -> nn.Module | None:
    """A copy of the classifier in float64; None for one that is no module, and so cannot be converted."""
    return copy.deepcopy(classifier).double() if isinstance(classifier, nn.Module) else None
