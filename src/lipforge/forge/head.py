"""Another last layer: its weight and bias take the place of the model's own, which are kept and come back unchanged."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipforge.errors import InputError, SiteError
from lipforge.forge.sites import unwrap
from lipforge.results.change import Change

CHILD = "own_head"


@dataclass(frozen=True, eq=False)
class Head:
    """The weight (K, F) and bias (K,) of a linear layer, by the layer's name: copies in float32, as a recipe keeps
    them."""

    layer: str
    weight: Tensor
    bias: Tensor | None

    def __post_init__(self) -> None:
        kinds = [getattr(tensor, "dtype", type(tensor).__name__) for tensor in self._tensors()]
        if not all(isinstance(kind, torch.dtype) and kind.is_floating_point for kind in kinds):
            raise InputError(f"the head of '{self.layer}' must hold tensors of floating point, got {kinds}")
        if self.weight.ndim != 2 or (self.bias is not None and self.bias.shape != self.weight.shape[:1]):
            shapes = [tuple(tensor.shape) for tensor in self._tensors()]
            raise InputError(f"a head has a weight (K, F) and a bias (K,), got {shapes}")
        for name, tensor in zip(("weight", "bias"), self._tensors(), strict=False):
            object.__setattr__(self, name, tensor.detach().to("cpu", torch.float32, copy=True))
        if not all(torch.isfinite(tensor).all() for tensor in self._tensors()):
            raise InputError(f"the head of '{self.layer}' must hold finite numbers")

    def __eq__(self, other: object) -> bool:
        """Whether layer and numbers are equal; what a dataclass does by itself fails on tensors."""
        if not isinstance(other, Head) or self.layer != other.layer or len(self._tensors()) != len(other._tensors()):
            return False
        return all(map(torch.equal, self._tensors(), other._tensors()))

    def _tensors(self) -> list[Tensor]:
        return [tensor for tensor in (self.weight, self.bias) if tensor is not None]


class OwnHead(nn.Module):
    """The parameters that a layer had before `set_head_`; buffers that are not saved, so keys do not change.
    `originals` are the objects, which optimizers and tied layers know; they stay behind if the model is converted."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)
        self.originals = [weight, bias]  # a list, so that they are no parameters of the model

    def lipforge_change(self, model: nn.Module) -> Change | None:
        """What lipforge changed in the `model` that this is a part of; see `Forge.lipforge_change`."""
        from lipforge.forge.change import change_of

        return change_of(model)

    def restore_(self, layer: nn.Module) -> None:
        """Give the layer its own parameters back."""
        _replace(layer, self.weight, self.bias)
        for name, kept, original in zip(("weight", "bias"), (self.weight, self.bias), self.originals, strict=True):
            if isinstance(original, nn.Parameter) and kept is not None and original.data_ptr() == kept.data_ptr():
                layer._parameters[name] = original


def set_head_(model: nn.Module, head: Head | None) -> None:
    """Give the linear layer that `head` names its weight and bias; None brings the model's own back, to the byte."""
    inner = unwrap(model)
    if head is not None and (reason := misfit(inner, head)):
        raise SiteError(reason)
    for layer in set(_changed(inner).values()):
        own = layer._modules.pop(CHILD)
        assert isinstance(own, OwnHead)
        own.restore_(layer)
    if head is not None:
        layer = inner.get_submodule(head.layer)
        assert isinstance(layer, nn.Linear)
        own = OwnHead(layer.weight, layer.bias).train(layer.training)
        _replace(layer, head.weight.clone(), None if head.bias is None else head.bias.clone())
        layer.add_module(CHILD, own)


def misfit(model: nn.Module, head: Head) -> str:
    """Why the model has no layer that `head` fits, or the empty text if it has one."""
    layer = dict(_named(model)).get(head.layer)
    if not isinstance(layer, nn.Linear):
        found = "nothing" if layer is None else f"a {type(layer).__name__}"
        return f"the head is for a linear layer '{head.layer}', and the model has {found} there"
    if layer._parameters.get("weight") is None or "bias" not in layer._parameters:
        return f"'{head.layer}' computes its weight from others (weight_norm, parametrizations); remove these first"
    if layer.weight.shape != head.weight.shape or (layer.bias is None) != (head.bias is None):
        shapes = [_shapes(tensors.weight, tensors.bias) for tensors in (head, layer)]
        return f"the head of '{head.layer}' has {shapes[0]}, but the model's layer has {shapes[1]}"
    return ""


def head_of(model: nn.Module) -> Head | None:
    """What `set_head_` gave the model, or None."""
    for name, layer in _changed(model).items():
        weight, bias = layer._parameters["weight"], layer._parameters["bias"]
        assert weight is not None
        return Head(name, weight.detach(), None if bias is None else bias.detach())
    return None


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors, by their keys in the state dict, that `set_head_` replaced."""
    return {
        f"{name}.{key}" if name else key: tensor
        for name, layer in _changed(model).items()
        for key, tensor in layer._modules[CHILD].named_buffers()  # type: ignore[union-attr]  # _changed has looked
    }


def _changed(model: nn.Module) -> dict[str, nn.Module]:
    return {name: layer for name, layer in _named(model) if CHILD in layer._modules}


def _named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """All modules, those with two names by both: a state dict has both too."""
    return list(unwrap(model).named_modules(remove_duplicate=False))


def _replace(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> None:
    """In the layer's own device, dtype and `requires_grad`; tensors that fit already are taken as they are."""
    for name, tensor in (("weight", weight), ("bias", bias)):
        before = layer._parameters[name]
        if tensor is not None and before is not None:
            layer._parameters[name] = nn.Parameter(tensor.detach().to(before), requires_grad=before.requires_grad)


def _shapes(weight: Tensor, bias: Tensor | None) -> str:
    return f"{tuple(weight.shape)} and {'no bias' if bias is None else 'a bias'}"
