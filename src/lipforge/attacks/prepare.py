"""A quicker stand-in for a model, for attacks to search on: the same function up to rounding, or else the model itself.

Batch norms are folded into the convs before them, and the convs run in the channels-last layout. What can be folded is
found by watching one forward pass from outside; the result is checked on real images, and never trusted with a verdict:
a success counts only if the original is fooled.
"""

import copy
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from lipforge.attacks.foldable import direct_pairs, fold_
from lipforge.attacks.queries import Prepared
from lipforge.errors import InputError
from lipforge.types import Classifier

Precision = Literal["float32", "bfloat16", "float16"]

LAYOUTS = (torch.channels_last, torch.contiguous_format)
"""How a stand-in's convs may run: the quicker layout first."""

CHECKED = 16
"""Images on which the stand-in must agree with the model."""

ROUNDING, JUMP = 1e-4, 0.02
"""How far its logits may be from the model's, as a share of the largest logit: on 3 of 4 images, and on all of them.

A model that jumps, as a step mask does, turns rounding at the jump into more than rounding: on a forged ResNet one
image in 32 moves by 0.001 when nothing but the memory layout changes.
"""


def prepare(model: Classifier, images: Tensor, *, precision: Precision = "float32") -> Prepared:
    """`model` with a quicker stand-in, checked on the first of `images` (N, C, H, W); attacks take it like any model.

    A stand-in is made for modules in eval mode that can be copied. Where it does not agree with the model within
    rounding, and for any other callable, the model stands in for itself. With `precision` "bfloat16" or "float16" the
    stand-in also runs under autocast, which rounds more coarsely and is not checked; what it finds still has to fool
    the original, in the images' own precision. A stand-in is a snapshot: prepare again after changing the model.
    """
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
    quick, _ = stand_in(model, images, precision)
    return Prepared(model, quick)


def stand_in(model: Classifier, images: Tensor, precision: Precision) -> tuple[Classifier, int]:
    """What to search on, the model itself if there is nothing better, and the passes over the images it was checked on.

    A copy that fails in the channels-last layout, as one does that flattens with `view`, is tried in the usual one.
    """
    images, passes = images[:CHECKED], 0
    twin = _folded(model, images) if isinstance(model, nn.Module) and len(images) else None
    if twin is not None:
        with torch.no_grad():
            expected = model(images)  # first, and by itself: its own errors are the caller's to see
        passes += 1
        for layout in LAYOUTS:
            laid = Laid(_moved(twin, layout), layout)
            passes += 1
            if _agrees(laid, images, expected):
                return _rounded(laid, precision), passes
    return _rounded(model, precision), passes


@dataclass(frozen=True)
class Laid:
    """The module on images in a memory layout."""

    module: nn.Module
    layout: torch.memory_format

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x.contiguous(memory_format=self.layout))
        return logits


@dataclass(frozen=True)
class Rounded:
    """The classifier under autocast to `dtype`; its logits come back in the dtype of the images."""

    classifier: Classifier
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=self.dtype):
            return self.classifier(x).to(x.dtype)


def _rounded(classifier: Classifier, precision: Precision) -> Classifier:
    return classifier if precision == "float32" else Rounded(classifier, getattr(torch, precision))


@torch.no_grad()
def _folded(model: nn.Module, images: Tensor) -> nn.Module | None:
    """A copy of the model with its batch norms folded; None where there is nothing to fold, or no copy to be had."""
    if any(module.training or isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return None
    if hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return None  # compiled or replicated already
    try:
        twin = copy.deepcopy(model).requires_grad_(False)
        pairs = direct_pairs(twin, images[:1])
        for conv, norm in pairs:
            fold_(twin, conv, norm)
    except Exception:  # whatever a user's __deepcopy__ or non-leaf tensor raises: the model serves as it is
        return None
    return twin if pairs else None  # another memory layout alone gains nothing to speak of


def _moved(module: nn.Module, layout: torch.memory_format) -> nn.Module:
    return module.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]  # documented, not in the stubs


def _agrees(quick: Classifier, images: Tensor, expected: Tensor) -> bool:
    """Whether the stand-in gives the expected logits, and goes forward and back with a single image too."""
    try:
        with torch.no_grad():
            found = quick(images)
        one = images[:1].clone().requires_grad_()
        with torch.enable_grad():
            torch.autograd.grad(quick(one).sum(), one)
    except Exception:  # whatever a layer that is not used to its new neighbours raises
        return False
    if found.shape != expected.shape or expected.ndim != 2:
        return False
    off = (found - expected).abs().amax(dim=1) / expected.abs().amax(dim=1).clamp_min(1e-12)
    return bool((off < ROUNDING).float().mean() >= 0.75 and (off < JUMP).all())
