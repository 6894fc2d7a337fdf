"""Which batch norms can be folded into the conv before them, exactly, and the folding."""

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _Record(TorchDispatchMode):
    """What one forward pass did: who was called, which conv's output went into which norm, and who read it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self.calls: Counter[str] = Counter()
        self.reads: Counter[int] = Counter()
        self.made: dict[int, tuple[str, Tensor]] = {}
        self.pairs: dict[str, tuple[str, Tensor]] = {}
        self.kept: list[Tensor] = []

    def after_conv(self, name: str, module: nn.Module, args: Any, out: Tensor) -> None:
        self.calls[name] += 1
        self.made[id(out)] = (name, out)

    def before_norm(self, name: str, module: nn.Module, args: Any) -> None:
        self.calls[name] += 1
        if args and id(args[0]) in self.made:
            self.pairs[name] = self.made[id(args[0])]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.reads.update({_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)})
        out = func(*args, **(kwargs or {}))
        # Kept alive: the storage of a tensor that is gone could come back under the same address.
        self.kept += [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        return out


def direct_pairs(model: nn.Module, image: Tensor) -> list[tuple[str, str]]:
    """The names (conv, batch norm) of those where the conv's output goes straight into the norm, and nowhere else.

    Seen in one forward pass of `image` (1, C, H, W): both are called once, under one name, the norm uses its running
    statistics, and neither the conv's output nor the norm is touched by a hook. Whatever is left out is not exact.
    """
    record, handles = _Record(), []
    for name, module in _single(model):
        if _plain_conv(module):
            handles.append(module.register_forward_hook(partial(record.after_conv, name)))
        elif _fixed_norm(module):
            handles.append(module.register_forward_pre_hook(partial(record.before_norm, name)))
    try:
        with torch.no_grad(), record:
            model(image)
    finally:
        for handle in handles:
            handle.remove()
    return [
        (conv, norm)
        for norm, (conv, out) in record.pairs.items()
        if record.calls[conv] == record.calls[norm] == 1 and record.reads[_storage(out)] == 1
    ]


def fold_(model: nn.Module, conv: str, norm: str) -> None:
    """Scale and shift the conv as its batch norm would, computed in float64; an identity takes the norm's place."""
    layer, batch_norm = model.get_submodule(conv), model.get_submodule(norm)
    assert isinstance(layer, CONVS)
    assert isinstance(batch_norm, NORMS)
    assert batch_norm.running_mean is not None
    assert batch_norm.running_var is not None
    scale = (batch_norm.running_var.double() + batch_norm.eps).rsqrt()
    if batch_norm.weight is not None:
        scale = scale * batch_norm.weight.double()
    bias = torch.zeros_like(scale) if layer.bias is None else layer.bias.double()
    shift = (bias - batch_norm.running_mean.double()) * scale
    if batch_norm.bias is not None:
        shift = shift + batch_norm.bias.double()
    weight = layer.weight.double() * scale.reshape(-1, *[1] * (layer.weight.ndim - 1))
    layer.weight = nn.Parameter(weight.to(layer.weight.dtype), requires_grad=False)
    layer.bias = nn.Parameter(shift.to(layer.weight.dtype), requires_grad=False)
    parent, _, child = norm.rpartition(".")
    setattr(model.get_submodule(parent), child, nn.Identity().eval())


def _single(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that have one name only."""
    names: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append((name, module))
    return [found[0] for found in names.values() if len(found) == 1 and found[0][0]]


def _plain_conv(module: nn.Module) -> bool:
    return type(module) in CONVS and "weight" in module._parameters and not module._forward_hooks


def _fixed_norm(module: nn.Module) -> bool:
    watched = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
    return type(module) in NORMS and getattr(module, "running_mean", None) is not None and not watched


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
