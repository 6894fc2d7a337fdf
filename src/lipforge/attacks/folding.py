"""A folded copy of a model, for attacks to search on: the same function up to rounding, or else the model itself.

Batch norms are folded into the convs before them, and the convs run in the channels-last layout. What can be folded is
found by watching one forward pass from outside; the result is checked on real images, and never trusted with a verdict:
a success counts only if the original is fooled.
"""

import copy
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from lipforge import rng
from lipforge.attacks.queries import Prepared, forward
from lipforge.errors import InputError
from lipforge.outputs import logits_in
from lipforge.recording import record, storage
from lipforge.types import Classifier

Precision = Literal["float32", "bfloat16", "float16"]

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)

LAYOUTS = (torch.channels_last, torch.contiguous_format)
"""How a folded copy's convs may run: the quicker layout first."""

CHECKED, NOISE = 16, 8 / 255
"""Images on which the folded copy must agree with the model, as they are and with noise of up to that size."""

ROUNDING, JUMP = 1e-4, 0.02
"""How far its logits may be from the model's, as a share of the largest logit: on 3 of 4 images, and on all of them.

A model that jumps, as a step mask does, turns rounding at the jump into more than rounding: on a forged ResNet one
image in 32 moves by 0.001 when nothing but the memory layout changes.
"""


def prepare(model: Classifier, images: Tensor, *, precision: Precision = "float32") -> Prepared:
    """`model` with a folded copy, checked on the first CHECKED `images` (N, C, H, W); attacks take it like any model.

    Modules in eval mode that can be copied are folded. Where the copy does not agree with the model within rounding,
    and for any other callable, the model is its own folded copy. With `precision` "bfloat16" or "float16" the copy also
    runs under autocast, which rounds more coarsely and is not checked; what it finds still has to fool the original, in
    the images' own precision. A folded copy is a snapshot: prepare again after changing the model.
    """
    check_precision(precision)
    folded, _ = folded_copy(model, images, precision)
    return Prepared(model, folded)


def check_precision(precision: str) -> None:
    """Raise unless the precision is one that a folded copy can have."""
    if precision not in get_args(Precision):
        raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")


def folded_copy(model: Classifier, images: Tensor, precision: Precision) -> tuple[Classifier, int]:
    """What to search on, the model itself if there is nothing better, and the forwards of each image it was checked on.

    A copy that fails in the channels-last layout, as one does that flattens with `view`, is tried in the usual one.
    """
    images, passes = images[:CHECKED], 0
    folded = _folded(model, images) if isinstance(model, nn.Module) and len(images) else None
    if folded is not None:
        images = _with_noise(images)
        expected = forward(model, images)  # first, and by itself: its own errors are the caller's to see
        passes += 2
        for layout in LAYOUTS:
            folded.to(memory_format=layout)  # type: ignore[call-overload]  # documented, not in the stubs
            laid = Laid(folded, layout)
            passes += 2
            if _agrees(laid, images, expected):
                return _rounded(laid, precision), passes
    return _rounded(model, precision), passes


@dataclass(frozen=True)
class Laid:
    """The module on images in a memory layout."""

    module: nn.Module
    layout: torch.memory_format

    def __call__(self, x: Tensor) -> Tensor:
        return logits_in(self.module(x.contiguous(memory_format=self.layout)))


@dataclass(frozen=True)
class Autocast:
    """The classifier under autocast to that precision; its logits come back in the dtype of the images."""

    classifier: Classifier
    precision: Precision

    def __call__(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=getattr(torch, self.precision)):
            return logits_in(self.classifier(x)).to(x.dtype)


def _rounded(classifier: Classifier, precision: Precision) -> Classifier:
    return classifier if precision == "float32" else Autocast(classifier, precision)


@torch.no_grad()
def _folded(model: nn.Module, images: Tensor) -> nn.Module | None:
    """A copy of the model with its batch norms folded; None where there is nothing to fold, or no copy to be had."""
    if any(module.training or isinstance(module, torch.jit.ScriptModule) for module in model.modules()):
        return None
    if hasattr(model, "_orig_mod") or isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return None  # compiled or replicated already
    try:
        folded = copy.deepcopy(model).requires_grad_(False)
        pairs = direct_pairs(folded, images[:1])
        for conv, norm in pairs:
            fold_(folded, conv, norm)
    except Exception:  # whatever a user's __deepcopy__ or non-leaf tensor raises: the model serves as it is
        return None
    return folded if pairs else None  # another memory layout alone gains nothing to speak of


def _with_noise(images: Tensor) -> Tensor:
    """The images, and each of them with noise of another size: a copy must agree where attacks ask, too."""
    ids = torch.arange(len(images), device=images.device)
    noise = rng.normal(0, ids, stream="folding", shape=images.shape[1:], dtype=images.dtype).sign()
    size = NOISE * (ids + 1).to(images)[:, None, None, None] / len(images)
    return torch.cat([images, (images + size * noise).clamp(0, 1)])


def _agrees(folded: Classifier, images: Tensor, expected: Tensor) -> bool:
    """Whether the folded copy gives the expected logits, and goes forward and back with a single image too."""
    try:
        found = forward(folded, images)
        one = images[:1].clone().requires_grad_()
        with torch.enable_grad():
            torch.autograd.grad(folded(one).sum(), one)
    except Exception:  # whatever a layer that is not used to its new neighbours raises
        return False
    if found.shape != expected.shape:
        return False
    off = (found - expected).abs().amax(dim=1) / expected.abs().amax(dim=1).clamp_min(1e-12)
    return bool((off < ROUNDING).float().mean() >= 0.75 and (off < JUMP).all())


class _Seen:
    """What one forward pass did: who was called, which conv's output went into which norm, and who read it."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.reads: Counter[int] = Counter()
        self.made: dict[int, tuple[str, Tensor]] = {}
        self.pairs: dict[str, tuple[str, Tensor]] = {}

    def after_conv(self, name: str, module: nn.Module, args: Any, out: Tensor) -> None:
        self.calls[name] += 1
        self.made[id(out)] = (name, out)

    def before_norm(self, name: str, module: nn.Module, args: Any) -> None:
        self.calls[name] += 1
        if args and id(args[0]) in self.made:
            self.pairs[name] = self.made[id(args[0])]

    def operator(self, name: str, read: tuple[int, ...], output: Any) -> None:
        self.reads.update(read)


def direct_pairs(model: nn.Module, image: Tensor) -> list[tuple[str, str]]:
    """The names (conv, batch norm) of those where the conv's output goes straight into the norm, and nowhere else.

    Seen in one forward pass of `image` (1, C, H, W): both are called once, under one name, the norm uses its running
    statistics, and neither the conv's output nor the norm is touched by a hook. Whatever is left out is not exact.
    """
    seen, hooks = _Seen(), []
    for name, module in _single(model):
        if _plain_conv(module):
            hooks.append(module.register_forward_hook(partial(seen.after_conv, name)))
        elif _fixed_norm(module):
            hooks.append(module.register_forward_pre_hook(partial(seen.before_norm, name)))
    record(model, image, seen.operator, hooks)
    return [
        (conv, norm)
        for norm, (conv, out) in seen.pairs.items()
        if seen.calls[conv] == seen.calls[norm] == 1 and seen.reads[storage(out)] == 1
    ]


def fold_(model: nn.Module, conv: str, norm: str) -> None:
    """Scale and shift the conv as its batch norm would, computed in float64; an identity takes the norm's place."""
    layer, batch_norm = model.get_submodule(conv), model.get_submodule(norm)
    assert isinstance(layer, CONVS)
    assert isinstance(batch_norm, NORMS)
    assert batch_norm.running_mean is not None
    assert batch_norm.running_var is not None
    fused = fuse_conv_bn_weights(
        layer.weight.double(),
        _double(layer.bias),
        batch_norm.running_mean.double(),
        batch_norm.running_var.double(),
        batch_norm.eps,
        _double(batch_norm.weight),
        _double(batch_norm.bias),
    )
    dtype = layer.weight.dtype
    layer.weight, layer.bias = (nn.Parameter(part.to(dtype), requires_grad=False) for part in fused)
    parent, _, child = norm.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity().eval())


def _double(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.double()


def _single(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have one name only."""
    named = list(model.named_modules(remove_duplicate=False))
    names = Counter(id(module) for _, module in named)
    return [(name, module) for name, module in named if name and names[id(module)] == 1]


def _plain_conv(module: nn.Module) -> bool:
    kind = getattr(module, "unforged_class", type(module))  # a forged conv says what it is behind its mask
    return kind in CONVS and "weight" in module._parameters and not module._forward_hooks


def _fixed_norm(module: nn.Module) -> bool:
    watched = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) in NORMS and getattr(module, "running_mean", None) is not None and not watched
