"""Who is audited: a base, a candidate, and for each the ways to get at its gradients."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn

from lipforge.attacks.checks import depends_on_batch, differs, logits_in_parts
from lipforge.attacks.folding import Laid, folded_copy
from lipforge.attacks.queries import Prepared, logits_of
from lipforge.auditing.plan import OWN, RESERVED, TRANSFERRED
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError, ModelError
from lipforge.forge import (
    TTA,
    Transform,
    forged,
    forges,
    head_of,
    plain,
    smooth_backward,
    straight_through,
    tta_of,
    with_tta,
)
from lipforge.forge.insert import is_changed
from lipforge.outputs import logits_in
from lipforge.types import Classifier

BPDA = "BPDA identity"


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


def changed_pair(model: nn.Module) -> Pair:
    """The plain model against the changed one. With masks the candidate gets an identity and a smooth backward pass
    through each of them. With TTA both sides get the gradients of every transform alone, and a mean of probabilities,
    whose gradients vanish behind a confident copy, those of the mean of logits. The base's come with every pair."""
    base, candidate, tta = plain(model), forged(model), tta_of(model)
    masked = any(forge.ratio > 0 for forge in forges(model).values())
    transforms = () if tta is None else tta.transforms
    if not forges(model) and head_of(model) is None:  # the image as it is, alone, is then the base
        transforms = tuple(one for one in transforms if one != Transform())
    views = {BPDA: straight_through(model), "BPDA smooth": smooth_backward(model)} if masked else {}
    own: dict[str, Classifier] = {**views} or {OWN: candidate}
    other = {f"{one} alone": TTA((one,)) for one in transforms}
    if tta is not None and tta.mean != "logits":
        other["mean of logits"] = TTA(tta.transforms)
    # Past the masks too: through a transform alone, masked gradients would be no better than the whole model's.
    inner = straight_through(model) if masked else candidate
    sources, base_sources = ({name: with_tta(side, one) for name, one in other.items()} for side in (inner, base))
    borrowed = {name: borrow(candidate, source) for name, source in sources.items()}
    return _pair(base, candidate, {**own, **borrowed}, {**own, **sources}, model, base_sources)


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
    base_sources, sources = _own_sources(base), {**_own_sources(candidate), **surrogates}
    missing = dict.fromkeys((name for name in base_sources if name not in sources), candidate)
    views = {name: borrow(candidate, source) for name, source in sources.items()}
    return _pair(
        base,
        candidate,
        {OWN: candidate, **views, **missing},
        {OWN: candidate, **sources, **missing},
        None,
        base_sources,
    )


def _own_sources(classifier: Classifier) -> dict[str, Classifier]:
    """What gets at the gradients of a model that lipforge changed: past its masks, and through each transform alone."""
    if not (isinstance(classifier, nn.Module) and is_changed(classifier)):
        return {}
    sources = changed_pair(classifier).candidate.sources
    return {name: source for name, source in sources.items() if name not in (OWN, TRANSFERRED)}


def _pair(
    base: Classifier,
    candidate: Classifier,
    views: Mapping[str, Classifier],
    sources: Mapping[str, Classifier],
    model: nn.Module | None,
    base_sources: Mapping[str, Classifier] = MappingProxyType({}),
) -> Pair:
    """Each side also gets the gradients of the opposite one. The base has no masks: its further views are itself, or
    have the gradients of `base_sources`."""
    own = {**dict.fromkeys(views, base), **{name: borrow(base, source) for name, source in base_sources.items()}}
    lent = {**dict.fromkeys(views, base), **base_sources}
    return Pair(
        Side(base, {**own, TRANSFERRED: borrow(base, candidate)}, {**lent, TRANSFERRED: candidate}),
        Side(candidate, {**views, TRANSFERRED: borrow(candidate, base)}, {**sources, TRANSFERRED: base}),
        model,
    )


def folded_pair(pair: Pair, images: Tensor) -> Pair:
    """The pair, with folded copies of its views for attacks to search on, checked on `images`; the views as they are
    where there is nothing to fold. All views of a changed model share the weights of one copy."""
    copies = _folded_classifiers(pair, images) if pair.model is None else _folded_views(pair, images)
    if copies is None:
        return pair

    def prepared(side: Side, copied: Side) -> Side:
        made = {id(view): Prepared(view, copied.views[name]) for name, view in side.views.items()}
        # By its identity: one classifier may be several views.
        return replace(side, views={name: made[id(view)] for name, view in side.views.items()})

    return replace(pair, base=prepared(pair.base, copies.base), candidate=prepared(pair.candidate, copies.candidate))


def _folded_views(pair: Pair, images: Tensor) -> Pair | None:
    found, _ = folded_copy(pair.candidate.classifier, images, "float32")
    if not isinstance(found, Laid):
        return None
    copies, layout = changed_pair(found.module), found.layout

    def laid(view: Classifier) -> Classifier:
        return lambda x: view(x.contiguous(memory_format=layout))

    base, candidate = (
        replace(side, views={name: laid(view) for name, view in side.views.items()})
        for side in (copies.base, copies.candidate)
    )
    return replace(copies, base=base, candidate=candidate)


def _folded_classifiers(pair: Pair, images: Tensor) -> Pair | None:
    every = {
        id(each): each for side in (pair.base, pair.candidate) for each in (side.classifier, *side.sources.values())
    }
    folded = {key: folded_copy(each, images, "float32")[0] for key, each in every.items()}
    if all(folded[key] is each for key, each in every.items()):
        return None

    def copied(side: Side) -> Side:
        sources = {name: folded[id(source)] for name, source in side.sources.items()}
        own, classifier = (
            {name for name in sources if side.views[name] is side.sources[name]},
            folded[id(side.classifier)],
        )
        views = {name: source if name in own else borrow(classifier, source) for name, source in sources.items()}
        return Side(classifier, views, sources)

    return replace(pair, base=copied(pair.base), candidate=copied(pair.candidate))


def borrow(judge: Classifier, source: Classifier) -> Classifier:
    """A classifier with the logits of `judge`, bit for bit, and the gradients of `source`; one costs a forward through
    both and a backward through the source."""

    def borrowed(x: Tensor) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return logits_in(judge(x))
        with torch.no_grad():
            logits = logits_in(judge(x))
        lent = logits_in(source(x))
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
    """Raise if the classifier gives other logits when it is asked again, or in smaller batches: one unlucky draw would
    count as broken."""
    first = logits_of(classifier, x)
    if depends_on_batch(first, logits_in_parts(classifier, x)) and not differs(first, [logits_of(classifier, x)]):
        raise ModelError(
            f"{name} gives an image other logits in another batch, so that no count of robust images means anything; "
            "does a batch norm have track_running_stats=False?"
        )
    if differs(first, [logits_of(classifier, x) for _ in range(2)]):
        raise ModelError(
            f"{name} has random outputs, which cannot be judged: one unlucky draw would count as broken. Fix the "
            "randomness, or audit the mean of its logits over draws with fixed seeds; to attack a random model use "
            "lipforge evaluate --attack autoattack:version=rand"
        )


def in_double(classifier: Classifier, image: Tensor) -> nn.Module | None:
    """A copy of the classifier in float64 that takes an image (1, C, H, W); None for one that cannot be converted."""
    classifier = classifier.original if isinstance(classifier, Prepared) else classifier
    if not isinstance(classifier, nn.Module):
        return None
    try:
        copied = copy.deepcopy(classifier).double()
        with torch.no_grad():
            logits_of(copied, image.double())
    except Exception:  # one that cannot be copied, or that has float32 in its code
        return None
    return copied
