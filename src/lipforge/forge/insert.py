"""Forged functions into a model and out again: a `Forge` child on each layer, and a forward-pre-hook without state.

So layers keep their class and keys, `print(model)` shows the masks, and deepcopy, pickle and torch.compile work.
"""

import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from lipforge.batching import device_of
from lipforge.errors import SiteError
from lipforge.forge.layer import Forge, Mode, check_ratio
from lipforge.forge.masks import Mask
from lipforge.forge.sites import Site, some, unwrap

CHILD = "forge"


def insert_(
    model: nn.Module, sites: Iterable[Site], *, mask: Mask | None = None, ratio: float = 0.0
) -> dict[str, Forge]:
    """Put a forged function, the identity until calibrated, in front of each site's layer: all of them, or none."""
    inner, chosen, device = unwrap(model), list(sites), device_of(model)
    _check_sites(inner, chosen)
    layers = [inner.get_submodule(site.name) for site in chosen]
    made = [Forge(mask, ratio, site.in_features, site.channel_dim) for site in chosen]
    try:
        for layer, forge in zip(layers, made, strict=True):
            own = next((parameter.device for parameter in layer.parameters()), device)
            layer.add_module(CHILD, forge.train(layer.training).to(own))
            layer.register_forward_pre_hook(_forge_input, with_kwargs=True)
    except BaseException:
        for layer in layers:
            _detach(layer)
        raise
    _forget_compiled()
    return forges(model)


def remove_(model: nn.Module) -> None:
    """Take all forged functions out: the model is what it was before `insert_`, to the byte."""
    for name in forges(model):
        _detach(unwrap(model).get_submodule(name))
    _forget_compiled()


def forges(model: nn.Module) -> dict[str, Forge]:
    """The forged functions of `model` by the name of their layer, in the order of its modules."""
    children = ((name, module._modules.get(CHILD)) for name, module in unwrap(model).named_modules())
    return {name: child for name, child in children if isinstance(child, Forge)}


def set_ratio_(model: nn.Module, ratio: float | Mapping[str, float]) -> None:
    """Set one ratio for all sites, or those that a mapping gives for site names or globs; later entries win."""
    found = require_forges(model)
    plan: dict[str, float] = {}
    for glob, value in (ratio if isinstance(ratio, Mapping) else {"*": ratio}).items():
        names = [name for name in found if name == glob or fnmatchcase(name, glob)]
        if not names:
            sites = some([f"'{name}'" for name in found])
            raise SiteError(f"no forged site matches '{glob}'; sites are {sites}")
        plan.update(dict.fromkeys(names, check_ratio(value)))
    for name, value in plan.items():
        found[name].ratio = value


def set_mode_(model: nn.Module, mode: Mode) -> None:
    """Set the mode of every forged function."""
    for forge in require_forges(model).values():
        forge.mode = mode


def require_forges(model: nn.Module) -> dict[str, Forge]:
    """The forged functions of `model`, or an error if it has none."""
    found = forges(model)
    if not found:
        raise SiteError("the model has no forged functions; insert them with forge_ or insert_")
    return found


def _forge_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The forward-pre-hook: forge the layer's input, for attention modules query, key and value."""
    forge = cast(Forge, layer._modules[CHILD])
    if not isinstance(layer, nn.MultiheadAttention):
        if args:
            return (_forged(forge, args[0], layer), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, {**kwargs, name: _forged(forge, kwargs[name], layer)}
    # The same tensor must stay the same object: attention takes its fast paths by identity.
    attended = (*args[:3], *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))
    done = {key: forge(tensor) for key, tensor in {id(tensor): tensor for tensor in attended}.items()}
    forged_kwargs = {name: done.get(id(value), value) for name, value in kwargs.items()}
    return tuple(done.get(id(value), value) for value in args), forged_kwargs


def _forged(forge: Forge, x: Tensor, layer: nn.Module) -> Tensor:
    """The forged input; an in-place activation must still write where others (a shortcut) read."""
    if not getattr(layer, "inplace", False):
        return cast(Tensor, forge(x))
    source = x.clone()  # a mask keeps its input for the backward pass, so that must not be overwritten
    out = forge(source)
    return x if out is source else x.copy_(out)


def _detach(layer: nn.Module) -> None:
    layer._modules.pop(CHILD, None)
    for key in [key for key, hook in layer._forward_pre_hooks.items() if hook is _forge_input]:
        del layer._forward_pre_hooks[key]
        layer._forward_pre_hooks_with_kwargs.pop(key, None)


def _check_sites(model: nn.Module, sites: list[Site]) -> None:
    if not sites:
        raise SiteError("sites must not be empty; find_sites(model) finds some")
    modules = dict(model.named_modules())
    for site in sites:
        if site.name not in modules:
            raise SiteError(f"the model has no module '{site.name}'; was the site found in another model?")
        layer = modules[site.name]
        if type(layer).__name__ != site.layer:
            raise SiteError(f"site '{site.name}' should be a {site.layer}, but the model has a {type(layer).__name__}")
        if hasattr(layer, CHILD):
            raise SiteError(f"site '{site.name}' is forged already (or has a '{CHILD}' of its own); call remove_ first")
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise SiteError(f"sites must be distinct, got '{max(names, key=names.count)}' more than once")


def _forget_compiled() -> None:
    """Drop all compiled code: it does not look at hooks again, and which of it runs this model cannot be known."""
    if "torch._dynamo" in sys.modules:  # otherwise nothing was ever compiled
        torch.compiler.reset()
