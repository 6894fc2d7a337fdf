"""Gradients for classifiers whose own lead nowhere or are missing: 0, straight through rounding, a distilled copy."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lipforge import rng
from lipforge.attacks import norms
from lipforge.outputs import logits_in
from lipforge.types import Classifier, Threat


def _named(*names: str) -> frozenset[Any]:
    """The functions and methods of these names."""
    return frozenset(getattr(where, name) for name in names for where in (torch, Tensor) if hasattr(where, name))


ROUNDING = _named("round", "floor", "ceil", "trunc", "fix", "sign", "sgn")
CHOOSING = _named("argmax")
RISING, FALLING = _named("gt", "ge"), _named("lt", "le")  # the operators arrive under these names
TO_FLOAT = frozenset({Tensor.float, Tensor.double, Tensor.half, Tensor.to, Tensor.type_as, Tensor.type})

DISTILLING_STEPS, DISTILLING_BATCH, DISTILLING_RATE = 100, 64, 1e-3


@dataclass(frozen=True)
class ZeroGradient:
    """The logits of `original`, which gives no gradient with respect to its images, with a gradient of exactly 0: what
    follows it finds nothing, and no check will say that it predicts the model."""

    original: Classifier

    def __call__(self, x: Tensor) -> Tensor:
        # Detached, as what goes through NumPy or another framework takes no other images.
        return logits_in(self.original(x.detach())) + 0 * x.flatten(1).sum(dim=1, keepdim=True)


def with_gradient(classifier: Classifier, image: Tensor) -> Classifier:
    """The classifier, or the same with a gradient of 0 if it gives none at all, as `image` (1, C, H, W) shows."""
    point = image.detach().clone().requires_grad_()
    with torch.enable_grad():
        try:
            total = logits_in(classifier(point)).sum()
        except RuntimeError as error:
            if "requires grad" not in str(error):  # torch's words for .numpy() on images that want a gradient
                raise
            return ZeroGradient(classifier)
        found = torch.autograd.grad(total, point, allow_unused=True) if total.requires_grad else (None,)
    return ZeroGradient(classifier) if found[0] is None else classifier


class StraightThrough(TorchFunctionMode):
    """Inside, rounding, signs, argmax and comparisons that become numbers keep their values, bit for bit, and pass the
    gradient on as if they were not there (BPDA); `replaced` counts them. Compiled code and custom autograd functions
    are not looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced = 0
        self._sources: dict[int, tuple[Tensor, Tensor]] = {}  # of discrete tensors, by id; kept alive

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        first = args[0] if args and isinstance(args[0], Tensor) else None
        if first is None or not isinstance(out, Tensor):
            return out
        if func in ROUNDING and first.requires_grad:
            return self._passed(first, out)
        if func in CHOOSING and first.requires_grad:
            self._sources[id(out)] = first, out
        elif func in RISING | FALLING and len(args) > 1 and first.is_floating_point():
            difference = (first - args[1]) * (-1 if func in FALLING else 1)
            if difference.requires_grad:
                self._sources[id(out)] = difference, out
        elif id(first) in self._sources:
            source = self._sources[id(first)][0]
            if func is F.one_hot:
                self._sources[id(out)] = source, out
            elif func in TO_FLOAT and out.is_floating_point() and out.shape == source.shape:
                return self._passed(source, out)
        return out

    def _passed(self, source: Tensor, value: Tensor) -> Tensor:
        self.replaced += 1
        passed: Tensor = _Passed.apply(source, value.detach())  # type: ignore[no-untyped-call]  # untyped in torch
        return passed


class _Passed(torch.autograd.Function):
    """`value`, with the gradient of `source`."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def through_rounding(classifier: Classifier, image: Tensor) -> Classifier | None:
    """The classifier with gradients straight through its rounding; None where it does not round, as `image` shows."""

    def straight(x: Tensor) -> Tensor:
        with StraightThrough():
            return logits_in(classifier(x))

    with torch.enable_grad(), StraightThrough() as mode:
        classifier(image.detach().clone().requires_grad_())
    return straight if mode.replaced else None


def distilled(
    student: Classifier,
    teacher: Classifier,
    images: Callable[[list[int]], Tensor],
    count: int,
    *,
    threat: Threat,
    seed: int,
) -> nn.Module | None:
    """A copy of `student`, trained for some steps to give the outputs of `teacher` on noisy images inside the threat;
    None where the student is no module, cannot be copied or cannot be trained. `images` gives those at positions below
    `count`."""
    if not isinstance(student, nn.Module):
        return None
    try:
        made = copy.deepcopy(student).requires_grad_(True)
    except Exception:  # whatever a user's __deepcopy__ raises: then there is no copy
        return None
    parameters = [parameter for parameter in made.parameters() if parameter.is_floating_point()]
    if not parameters:
        return None
    optimizer, norm = torch.optim.Adam(parameters, lr=DISTILLING_RATE), norms.of(threat)
    for step in range(DISTILLING_STEPS):
        ids = torch.arange(step * DISTILLING_BATCH, (step + 1) * DISTILLING_BATCH)
        drawn = (rng.uniform(seed, ids, stream="distilling", shape=(1,)).squeeze(1) * count).long().clamp_max(count - 1)
        x = images(drawn.tolist())
        x = norm.random_start(x, threat.eps, seed=seed, sample_ids=ids.to(x.device), stream="distilling-noise")
        with torch.no_grad():
            wanted = F.softmax(logits_in(teacher(x)), dim=1)
        with torch.enable_grad():
            loss = F.cross_entropy(logits_in(made(x)), wanted)
            if not (loss.requires_grad and loss.isfinite()):
                return None
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        optimizer.step()
    return made.requires_grad_(False)
