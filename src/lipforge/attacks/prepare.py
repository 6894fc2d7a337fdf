"""A quicker stand-in for a model, for attacks to search on: the same function up to rounding, or else the model itself.

Batch norms are folded into the convs before them, and the convs run in the channels-last layout. Both are found by
watching one forward pass from outside, checked on real images, and never trusted with a verdict: a success counts only
if the original model is fooled.
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
    stand_in = _stand_in(model, images[:CHECKED]) if isinstance(model, nn.Module) and len(images) else None
    quick: Classifier = model if stand_in is None else stand_in
    return Prepared(model, quick if precision == "float32" else Rounded(quick, getattr(torch, precision)))


@dataclass(frozen=True)
class ChannelsLast:
    """The module on images in the channels-last layout."""

    module: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        logits: Tensor = self.module(x.contiguous(memory_format=torch.channels_last))
        return logits


@dataclass(frozen=True)
class Rounded:
    """The classifier under autocast to `dtype`; its logits come back in the dtype of the images."""

    classifier: Classifier
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=self.dtype):
            return self.classifier(x).to(x.dtype)


@torch.no_grad()
def _stand_in(model: nn.Module, images: Tensor) -> Classifier | None:
    """The stand-in, or None where there is none to be had or none to be trusted."""
    if any(module.training or isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return None
    if hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return None  # compiled or replicated already
    try:
        twin = copy.deepcopy(model).requires_grad_(False)
    except Exception:  # whatever a user's __deepcopy__ or non-leaf tensor raises: the model serves as it is
        return None
    pairs = direct_pairs(twin, images[:1])
    if not pairs:
        return None  # another memory layout alone gains nothing to speak of
    for conv, norm in pairs:
        fold_(twin, conv, norm)
    twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # documented, not in torch's stubs
    quick = ChannelsLast(twin)
    return quick if _agree(quick(images), model(images)) else None


def _agree(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape or expected.ndim != 2:
        return False
    off = (found - expected).abs().amax(dim=1) / expected.abs().amax(dim=1).clamp_min(1e-12)
    return bool((off < ROUNDING).float().mean() >= 0.75 and (off < JUMP).all())
