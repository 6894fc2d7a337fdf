"""Test-time augmentation (TTA): the mean over transformed copies of each image, a change of the whole model.

As a forged layer does, the model gets a class of its own that comes before its class: keys do not change, `isinstance`
holds, deepcopy and pickle work, and compiled code, which guards classes, never serves a model with other transforms.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.sites import unwrap
from lipforge.outputs import logits_in
from lipforge.results.change import Change

Mean = Literal["logits", "probabilities"]

SHIFTS = {
    "shifts": ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)),
    "diagonals": ((0, 0), (1, 1), (-1, -1)),
}

NAMES = ("mirror", "diagonals", "shifts", "mirror x diagonals", "mirror x shifts")
"""The sets of transforms that have a name, from cheap to expensive; with shifts also " by 2" pixels and more."""

NAMED = re.compile(f"(?P<name>{'|'.join(NAMES)})(?: by (?P<pixels>[1-9][0-9]?))?")


@dataclass(frozen=True)
class Transform:
    """A copy of an image: mirrored left to right or not, then moved down and right by some pixels, the edges reflected.

    >>> print(Transform(mirror=True, down=1), "|", Transform())
    mirror, shift +1 +0 | identity
    """

    mirror: bool = False
    down: int = 0
    right: int = 0

    def __post_init__(self) -> None:
        if type(self.mirror) is not bool or type(self.down) is not int or type(self.right) is not int:
            raise InputError(f"a transform has mirror true or false and whole pixels, got {vars(self)}")

    def __call__(self, x: Tensor) -> Tensor:
        """The transformed images (N, C, H, W)."""
        if self.mirror:
            x = x.flip(-1)
        up, left, height, width = abs(self.down), abs(self.right), x.shape[-2], x.shape[-1]
        if not up and not left:
            return x
        if up >= height or left >= width:
            raise InputError(f"a shift must be smaller than the image ({height} x {width}), got {self}")
        return _shifted(_shifted(x, self.down, -2), self.right, -1)

    def __str__(self) -> str:
        moved = f"shift {self.down:+d} {self.right:+d}" if self.down or self.right else ""
        return ", ".join(filter(None, ("mirror" if self.mirror else "", moved))) or "identity"


def _shifted(x: Tensor, pixels: int, dim: int) -> Tensor:
    """`x` moved along one dimension, by slices: on CUDA the gradient of reflection padding is not deterministic."""
    if not pixels:
        return x
    size, gap = x.shape[dim], abs(pixels)
    kept = x.narrow(dim, max(-pixels, 0), size - gap)
    reflected = x.narrow(dim, 1 if pixels > 0 else size - 1 - gap, gap).flip(dim)
    return torch.cat((reflected, kept) if pixels > 0 else (kept, reflected), dim)


@dataclass(frozen=True)
class TTA:
    """The transforms to average over, and what is averaged: logits, or probabilities (the output is then their log).

    All copies of the images go through the network as one batch.

    >>> TTA.parse("mirror x diagonals").cost, TTA.parse("mirror") == TTA((Transform(), Transform(mirror=True)))
    (6, True)
    """

    transforms: tuple[Transform, ...]
    mean: Mean = "logits"

    def __post_init__(self) -> None:
        known = isinstance(self.transforms, tuple) and all(isinstance(one, Transform) for one in self.transforms)
        if not known or not self.transforms:
            raise InputError(f"transforms must be a tuple of Transform objects, at least one, got {self.transforms!r}")
        if len(set(self.transforms)) < len(self.transforms):
            raise InputError(f"transforms must differ from each other, got {', '.join(map(str, self.transforms))}")
        if self.mean not in get_args(Mean):
            raise InputError(f"mean must be one of {', '.join(get_args(Mean))}, got {self.mean!r}")

    @staticmethod
    def parse(text: str) -> "TTA":
        """The TTA of a text: "mirror", "shifts" (4 neighbours), "diagonals" (2), or mirror with one of these, " x ".
        Shifts are by one pixel, or by as many as the text says: "mirror x diagonals by 2"."""
        named = NAMED.fullmatch(" ".join(text.split())) if isinstance(text, str) else None
        if named is None or (named["pixels"] and named["name"] == "mirror"):
            raise InputError(
                f"tta must be one of {', '.join(NAMES)}, those with shifts also as in 'diagonals by 2', got {text!r}"
            )
        flips, pixels = (False, True) if named["name"].startswith("mirror") else (False,), int(named["pixels"] or 1)
        shifts = SHIFTS.get(named["name"].removeprefix("mirror x "), ((0, 0),))
        return TTA(tuple(Transform(flip, pixels * down, pixels * right) for down, right in shifts for flip in flips))

    @property
    def cost(self) -> int:
        """Forward passes per image."""
        return len(self.transforms)

    def transformed(self, x: Tensor) -> Tensor:
        """Images (N, C, H, W) to all their copies (cost * N, C, H, W), one transform after the other."""
        return torch.cat([transform(x) for transform in self.transforms])

    def averaged(self, logits: Tensor) -> Tensor:
        """Logits (cost * N, K) of all copies to those of the images (N, K)."""
        each = torch.unflatten(logits, 0, (self.cost, -1))
        if self.mean == "logits":
            return each.mean(0)
        return each.log_softmax(-1).logsumexp(0) - math.log(self.cost)

    def __str__(self) -> str:
        pixels = max(max(abs(one.down), abs(one.right)) for one in self.transforms)
        known = {TTA.parse(name): name for name in NAMES}
        if pixels > 1:
            further = (f"{name} by {pixels}" for name in NAMES if name != "mirror")
            known |= {TTA.parse(name): name for name in further if pixels < 100}
        means = "" if self.mean == "logits" else f", mean of {self.mean}"
        same = TTA(self.transforms)
        return (known.get(same) or f"{self.cost} transforms ({'; '.join(map(str, self.transforms))})") + means


def set_tta_(model: nn.Module, tta: TTA | str | None) -> None:
    """Make `model` answer with the mean over transformed copies of each image; None takes that out again."""
    inner = _root(model)
    if tta is not None and not isinstance(tta, TTA):
        tta = TTA.parse(tta)
    if tta is not None:
        _check_root(inner)
    if isinstance(inner, WithTTA):
        if WithTTA not in type(inner).__bases__:
            raise SiteError(f"the model changed its class after it got TTA, to {type(inner)}; undo that first")
        inner.__class__ = vars(inner).pop("class_without_tta")
    if tta is not None:
        _with_tta_class(inner, tta)


def tta_of(model: nn.Module) -> TTA | None:
    """What `set_tta_` gave the model, or None."""
    inner = _root(model)
    return inner.lipforge_tta if isinstance(inner, WithTTA) else None


def _root(model: nn.Module) -> nn.Module:
    """The module that may have TTA; an error if one inside it does, which would go unnoticed."""
    inner = unwrap(model)
    for name, module in inner.named_modules():
        if module is not inner and isinstance(module, WithTTA):
            raise SiteError(f"TTA is set on '{name}' inside the model; remove it there, and set it on the whole model")
    return inner


def _check_root(model: nn.Module) -> None:
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError("a scripted model cannot be changed; apply TTA before torch.jit.script or trace")
    if isinstance(model, torch.fx.GraphModule):
        raise ModelError("a torch.fx graph makes a class of its own when it is copied; wrap it in a module for TTA")
    if "forward" in vars(model) or "unforged_class" in vars(model):
        raise SiteError("the model is a single forged layer, or has a forward set on the object; wrap it in a module")


class WithTTA(nn.Module):
    """The part of a model's class that comes before its own: transformed copies in, their mean out."""

    lipforge_tta: TTA  # not `tta`, which a model may well have as an attribute of its own

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mean logits (N, K) alone: what else a model returns, such as features, has no mean over transforms."""
        output = super().forward(self.lipforge_tta.transformed(x), *args, **kwargs)
        return self.lipforge_tta.averaged(logits_in(output))

    def lipforge_change(self, model: nn.Module) -> Change | None:
        """What lipforge changed in this model, which may be inside another one; see `Forge.lipforge_change`."""
        from lipforge.forge.change import change_of

        return change_of(self)

    def extra_repr(self) -> str:
        own = super().extra_repr()
        return f"tta={self.lipforge_tta}" + (f", {own}" if own else "")

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the model is pickled, and then given TTA again: nothing can import a class that was made here."""
        make, args, *state = cast(tuple[Any, ...], super().__reduce_ex__(protocol))
        parts = (vars(self)["class_without_tta"] if part is type(self) else part for part in (make, *args))
        return _with_tta_again, (self.lipforge_tta, *parts), *state


def _with_tta_again(tta: TTA, make: Any, *args: Any) -> nn.Module:
    model: nn.Module = make(*args)
    return _with_tta_class(model, tta)


def _with_tta_class(model: nn.Module, tta: TTA) -> nn.Module:
    # In its __dict__ too, because compiled code may check classes only when a dict has changed.
    vars(model)["class_without_tta"] = type(model)
    model.__class__ = _tta_class(type(model), tta)  # type: ignore[arg-type]  # mypy takes no class as hashable
    return model


@cache
def _tta_class(kind: type[nn.Module], tta: TTA) -> type[nn.Module]:
    """It has the kind's name, by which recipes and other libraries know a model."""
    return type(kind.__name__, (WithTTA, kind), {"lipforge_tta": tta})
