"""Classifiers over one set of weights: the same model plain, changed, or changed with another backward pass.

A view is a copy of the module tree that shares the memory of every tensor and has its mode fixed, so views may be
interleaved, compiled and called from threads. Its parameters are its own objects: gradients, `requires_grad_` and
`half()` of a view do not reach the model. Make a new one after changing ratios or bounds, or converting the model.
"""

import copy
import math
from typing import Any

from torch import Tensor, nn

from lipforge.batching import check_eval
from lipforge.errors import InputError, ModelError
from lipforge.forge.insert import forges, is_changed, remove_, require_forges
from lipforge.forge.layer import Mode
from lipforge.forge.sites import unwrap
from lipforge.forge.tta import TTA, set_tta_


def plain(model: nn.Module) -> nn.Module:
    """The classifier without all that lipforge added, as it was before."""
    view = _shared_copy(model)
    remove_(view)
    return view


def forged(model: nn.Module) -> nn.Module:
    """The classifier with all that lipforge added at work: forged functions, affine, head and TTA."""
    if not is_changed(model):
        require_forges(model)
    return _view(model, "forged")


def with_tta(model: nn.Module, tta: TTA | None) -> nn.Module:
    """The classifier with other transforms, or none; its other changes as they are."""
    view = _shared_copy(model)
    set_tta_(view, tta)
    return view


def straight_through(model: nn.Module) -> nn.Module:
    """The forged classifier, logits equal bit for bit, whose backward pass ignores the masks (BPDA)."""
    require_forges(model)
    return _view(model, "straight_through")


def smooth_backward(model: nn.Module, *, width: float = 0.5) -> nn.Module:
    """The forged classifier, logits equal bit for bit, whose backward pass is `smooth_slope` of that width (BPDA)."""
    if not (math.isfinite(width) and width > 0):
        raise InputError(f"width must be above 0 (a share of the threshold), got {width}")
    require_forges(model)
    view = _view(model, "smooth_backward")
    for forge in forges(view).values():
        forge.width = width
    return view


def _view(model: nn.Module, mode: Mode) -> nn.Module:
    view = _shared_copy(model)
    for forge in forges(view).values():
        forge.mode = mode
    return view


def _shared_copy(model: nn.Module) -> nn.Module:
    inner = unwrap(model)
    check_eval(inner)
    memo: dict[int, Any] = {}
    for module in inner.modules():
        _remember_tensors(vars(module), memo, set())
    try:
        return copy.deepcopy(inner, memo)
    except Exception as error:
        raise ModelError(f"the model cannot be copied for a view, as copy.deepcopy fails on it: {error}") from error


def _remember_tensors(value: Any, memo: dict[int, Any], seen: set[int]) -> None:
    """Tell deepcopy to keep the memory of every tensor inside `value` (attributes, lists, dicts), not to copy it."""
    if type(value) is nn.Parameter:
        # half() and to() change parameters in place, and replace buffers.
        memo.setdefault(id(value), nn.Parameter(value.detach(), value.requires_grad))
    elif isinstance(value, Tensor):
        memo[id(value)] = value
    elif isinstance(value, dict | list | tuple | set) and id(value) not in seen:
        seen.add(id(value))
        for item in value.values() if isinstance(value, dict) else value:
            _remember_tensors(item, memo, seen)
