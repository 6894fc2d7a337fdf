"""Signs that the numbers of an attack cannot be trusted, as notes for its result."""

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks.queries import logits_of
from lipforge.attacks.state import AttackState
from lipforge.results import Note, Stage
from lipforge.types import Classifier

PROBE = "probe"
"""The stage of `fast` that is a short Square."""

LOOKED_AT = 32
"""Images of the batch that the checks ask the model about."""

RANDOM_OUTPUTS = Note(
    "random_outputs",
    "the model's outputs differ between repeated forwards, or with the other images of a batch: it is random, keeps "
    "state or mixes images, and these attacks mean little; "
    'use autoattack("rand")',
)
SOFTMAX = Note(
    "softmax",
    "the model's outputs look like probabilities, not logits: gradients vanish behind a softmax; leave it out",
)
ADAPTIVE_MODEL = Note(
    "adaptive_model",
    "the model computes gradients inside its forward pass: it adapts to the image it is shown, and attacks that do not "
    "know how may overestimate its robustness",
)
ZERO_GRADIENT = "had a gradient of exactly 0 and are robust only to attacks that gradients may have misled"
MASKED = (
    "have gradients that do not predict the model, yet count as robust: gradients are probably masked, and robust "
    "accuracy is overstated; run lipforge audit, with a surrogate for whatever hides the gradient"
)
SQUARE = (
    "were broken by Square, which uses no gradients, after the gradient attacks: gradients are probably masked; run it "
    "longer and try an adaptive attack"
)


def model_notes(state: AttackState, *, random_expected: bool = False) -> list[Note]:
    """What is suspicious about the model's own outputs; costs two forwards on the first images of the batch."""
    clean = state.clean_logits()[:LOOKED_AT]
    at = torch.arange(len(clean), device=clean.device)
    again, adapts = watched_logits(state, at)
    random = not random_expected and (differs(clean, [again]) or depends_on_batch(clean, _again(state, at, parts=2)))
    found = ((random, RANDOM_OUTPUTS), (sums_to_one(clean), SOFTMAX), (adapts, ADAPTIVE_MODEL))
    return [note for suspicious, note in found if suspicious]


def differs(first: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether any logits are further from the first than rounding explains."""
    return any(bool(_apart(first, other).any()) for other in others)


def depends_on_batch(whole: Tensor, in_parts: Tensor) -> bool:
    """Whether logits of a batch differ from those of its parts on more than a tenth of the images; rounding, which
    changes with the size of a batch, may move single images across the threshold of a mask."""
    return bool(_apart(whole, in_parts).float().mean() > 0.1)


def _apart(first: Tensor, other: Tensor) -> Tensor:
    """Which rows differ by more than rounding, relative to their spread: a constant added to all logits changes no
    class."""
    one, two = (logits - logits.mean(dim=1, keepdim=True) for logits in (first, other))
    size = torch.maximum(one.norm(dim=1), two.norm(dim=1))
    far: Tensor = (one - two).norm(dim=1) > 1e-4 * size
    return far


def logits_in_parts(model: Classifier, x: Tensor, ids: Tensor | None = None, parts: int = 2) -> Tensor:
    """The logits (N, K), asked in several smaller batches, the last image first."""
    order = torch.arange(len(x) - 1, -1, -1, device=x.device)
    found = [logits_of(model, x[part], None if ids is None else ids[part]) for part in order.chunk(parts)]
    return torch.cat(found).flip(0)


def sums_to_one(logits: Tensor) -> bool:
    """Whether every row is a probability distribution up to 1e-5."""
    return bool(((logits > -1e-5) & (logits < 1 + 1e-5)).all() and ((logits.sum(dim=1) - 1).abs() < 1e-5).all())


def watched_logits(state: AttackState, at: Tensor) -> tuple[Tensor, bool]:
    """The model's outputs, and whether it calls autograd while it computes them; nobody looks under a profiler."""
    if sys.getprofile() is not None:  # cProfile's cannot be put back
        return _again(state, at), False
    watched = {function.__code__ for function in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)}
    seen = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in watched:
            seen.append(frame.f_code.co_name)

    sys.setprofile(watch)
    try:
        logits = _again(state, at)
    finally:
        sys.setprofile(None)
    return logits, bool(seen)


@torch.no_grad()
def _again(state: AttackState, at: Tensor, parts: int = 1) -> Tensor:
    """The clean logits asked once more, of the model itself: a folded copy may round, and may not be random."""
    state.forwards[at] += 1
    if parts > 1:
        return logits_in_parts(state.model, state.x[at], state.ids[at], parts)
    return logits_of(state.model, state.x[at], state.ids[at])


def gradient_notes(state: AttackState) -> list[Note]:
    """Notes on the robust images with a gradient of exactly 0, and on those whose gradients do not predict the model:
    an attack that was led nowhere there is not the same as robust."""
    found = (("zero_gradient", ZERO_GRADIENT, state.zero_gradient), ("masked_gradients", MASKED, state.masked))
    counts = [(kind, text, int((images & ~state.broken).sum())) for kind, text, images in found]
    return [Note(kind, text, count, len(state.x)) for kind, text, count in counts if count]


def square_notes(stages: Sequence[Stage], count: int) -> list[Note]:
    """A note on the images of `count` that Square, or the probe, broke after attacks that use gradients.

    A few are no reason for a note: `merge_notes` drops it where they are, once all images are known.
    """
    broken = sum(
        before.robust - stage.robust
        for number, (before, stage) in enumerate(pairwise(stages[1:]), start=2)
        if stage.attack == PROBE or re.match(r"square\b", stage.attack)
        if any(earlier.backwards for earlier in stages[:number])
    )
    return [Note("square", SQUARE, broken, count)] if broken else []


def class_notes(classes: int, *, targets: int) -> list[Note]:
    """A note if the model has too few classes for the losses and targets of the standard attacks."""
    if classes > targets:
        return []
    changes = [f"targeted attacks have {classes - 1} targets instead of {targets}"]
    if classes < 4:
        changes.append("targeted APGD uses the margin, since the targeted dlr loss needs 4 classes")
    if classes < 3:
        changes.append("the margin replaces the dlr loss, which needs 3 classes")
    return [Note("few_classes", f"the model has {classes} classes: {'; '.join(changes)}")]
