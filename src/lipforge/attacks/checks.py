"""Signs that the numbers of an attack cannot be trusted, as sentences for the result's notes."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks.queries import logits_of
from lipforge.attacks.result import AttackResult, Stage
from lipforge.attacks.trial import Trial

PROBE = "probe"
"""The stage of autoattack("fast") that is a short Square."""

LOOKED_AT = 32
"""Images of the batch that the checks ask the model about."""


def model_notes(trial: Trial, *, random_expected: bool = False) -> list[str]:
    """What is suspicious about the model's own outputs; costs two forwards on the first images of the batch."""
    clean = trial.clean_logits()[:LOOKED_AT]
    at = torch.arange(len(clean), device=clean.device)
    notes = []
    again, adapts = watched_logits(trial, at)
    if not random_expected and differs(clean, [again, _again(trial, at)]):
        notes.append(
            "the model's outputs differ between repeated forwards: it is random or keeps state, and these attacks "
            'mean little; use autoattack("rand")'
        )
    if sums_to_one(clean):
        notes.append(
            "the model's outputs look like probabilities, not logits: gradients vanish behind a softmax; leave it out"
        )
    if adapts:
        notes.append(
            "the model computes gradients inside its forward pass: it adapts to the image it is shown, and attacks "
            "that do not know how may overestimate its robustness"
        )
    return notes


def differs(first: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether any logits are further from the first, scaled to length 1, than rounding explains."""
    scaled = [torch.nn.functional.normalize(logits, dim=1) for logits in (first, *others)]
    return any(bool(((scaled[0] - other).norm(dim=1) > 1e-4).any()) for other in scaled[1:])


def sums_to_one(logits: Tensor) -> bool:
    """Whether every row is a probability distribution up to 1e-5."""
    return bool(((logits > -1e-5) & (logits < 1 + 1e-5)).all() and ((logits.sum(dim=1) - 1).abs() < 1e-5).all())


def watched_logits(trial: Trial, at: Tensor) -> tuple[Tensor, bool]:
    """The model's outputs, and whether it calls autograd while it computes them."""
    watched = {function.__code__ for function in (torch.autograd.grad, torch.autograd.backward, Tensor.backward)}
    seen = []

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in watched:
            seen.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        logits = _again(trial, at)
    finally:
        sys.setprofile(before)
    return logits, bool(seen)


@torch.no_grad()
def _again(trial: Trial, at: Tensor) -> Tensor:
    """The clean logits asked once more, of the model itself: a stand-in may round, and may not be random."""
    trial.forwards[at] += 1
    return logits_of(trial.model, trial.x[at], trial.ids[at])


def gradient_notes(trial: Trial) -> list[str]:
    """A note if some gradient was exactly 0: the attack did not move there, which is not the same as robust."""
    count = int(trial.zero_gradient.sum())
    if count == 0:
        return []
    return [f"{count} of {len(trial.x)} images had a gradient of exactly 0: gradient attacks cannot be trusted on them"]


def square_notes(lost: int, count: int) -> list[str]:
    """A note if Square, or the probe, broke more than 0.2 % of `count` images after attacks that use gradients."""
    if lost <= 0.002 * count:
        return []
    return [
        f"Square, which uses no gradients, broke another {100 * lost / count:.1f} % of the images after the gradient "
        "attacks: gradients are probably masked; run it longer and try an adaptive attack"
    ]


def by_square(stages: Sequence[Stage]) -> int:
    """How many images Square, or the probe, broke after attacks that use gradients."""
    return sum(
        before.robust - stage.robust
        for before, stage in pairwise(stages[1:])
        if stage.attack == PROBE or stage.attack.startswith("square")
    )


def notes_and_square(result: AttackResult) -> tuple[list[str], int]:
    """The notes of a result without the one on Square, and how many images Square broke.

    For whoever attacks in parts: in a part one image is already a percent, so Square is judged on all of them together.
    """
    lost = by_square(result.stages)
    own = square_notes(lost, len(result.images))
    return [note for note in result.notes if note not in own], lost


def class_notes(classes: int, *, targets: int) -> list[str]:
    """A note if the model has too few classes for the losses and targets of the standard attacks."""
    if classes > targets:
        return []
    changes = [f"targeted attacks have {classes - 1} targets instead of {targets}"]
    if classes < 4:
        changes.append("targeted APGD uses the margin, since the targeted dlr loss needs 4 classes")
    if classes < 3:
        changes.append("the margin replaces the dlr loss, which needs 3 classes")
    return [f"the model has {classes} classes: {'; '.join(changes)}"]
