"""Forged functions into a model and out again: a `Forge` child on each layer, whose class forges before it computes.

So keys do not change, `isinstance(layer, Conv2d)` holds, `print(model)` shows the masks, and deepcopy and pickle work.
Compiled code guards the class of every layer, so it never serves a model that is forged otherwise.
"""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, cast

from torch import Tensor, nn

from lipforge.batching import device_of
from lipforge.errors import SiteError
from lipforge.forge.head import head_of, set_head_
from lipforge.forge.layer import Forge, Mode, check_ratio
from lipforge.forge.masks import Mask
from lipforge.forge.sites import Site, some, unwrap
from lipforge.forge.tta import WithTTA, set_tta_, tta_of

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
            _attach(layer, forge.train(layer.training).to(own))
    except BaseException:
        for layer in layers:
            _detach(layer)
        raise
    return forges(model)


def remove_(model: nn.Module) -> None:
    """Take everything out that lipforge added, forged functions, TTA and a refitted head: the model is what it was
    before, to the byte."""
    layers = _removable(model)
    set_tta_(model, None)
    for layer in layers:
        _detach(layer)
    set_head_(model, None)


def remove_forges_(model: nn.Module) -> None:
    """Take the forged functions out, and leave TTA and head as they are."""
    for layer in _removable(model):
        _detach(layer)


def _removable(model: nn.Module) -> list[nn.Module]:
    """The forged layers, or an error if one cannot be what it was before."""
    layers = {name: unwrap(model).get_submodule(name) for name in forges(model)}
    for name, layer in layers.items():
        if ForgedLayer not in type(layer).__bases__:
            raise SiteError(
                f"site '{name}' changed its class after it was forged, to {type(layer)}; undo that before remove_ or "
                "a plain view, and parametrize layers before forging them"
            )
    return list(layers.values())


def is_changed(model: nn.Module) -> bool:
    """Whether lipforge added anything to the model: forged functions, TTA or a head."""
    return bool(forges(model)) or tta_of(model) is not None or head_of(model) is not None


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


def refuse_affine(model: nn.Module, what: str) -> None:
    """Raise if a forged function also scales and shifts: what is measured behind it is not what its mask lets pass."""
    if any(forge.scale is not None for forge in forges(model).values()):
        raise SiteError(f"{what} does not work behind an affine part (a scale and shift per channel); remove_ it first")


class ForgedLayer(nn.Module):
    """The part of a forged layer's class that comes before the layer's own: it forges the input."""

    unforged_class: type[nn.Module]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = _forge_input(self, args, kwargs)
        return super().forward(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As the layer is pickled, and then forged again: nothing can import a class that was made here."""
        make, args, *state = cast(tuple[Any, ...], super().__reduce_ex__(protocol))
        parts = (self.unforged_class if part is type(self) else part for part in (make, *args))
        return _forged_again, tuple(parts), *state


def _forged_again(make: Callable[..., nn.Module], *args: Any) -> nn.Module:
    return _with_forged_class(make(*args))


def _with_forged_class(layer: nn.Module) -> nn.Module:
    """The layer in the class of forged ones of its kind, one per kind, as compiled code tells classes apart."""
    layer.__class__ = _forged_class(type(layer))  # type: ignore[arg-type]  # mypy takes no class as hashable
    return layer


@cache
def _forged_class(kind: type[nn.Module]) -> type[nn.Module]:
    """It has the kind's name, by which sites, recipes and other libraries know a layer."""
    return type(kind.__name__, (ForgedLayer, kind), {})


def _called(layer: nn.Module, args: Any) -> None:
    """A hook that does nothing: TransformerEncoderLayer's fast path would read the weights of layers without hooks
    instead of calling them, and so skip the forged function."""


def _forge_input(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments with the layer's input forged: for attention modules query, key and value."""
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


def _attach(layer: nn.Module, forge: Forge) -> None:
    layer.add_module(CHILD, forge)
    layer.register_forward_pre_hook(_called)
    # In the layer's __dict__, because compiled code may check the classes below a module only when a dict has changed.
    vars(layer)["unforged_class"] = type(layer)
    _with_forged_class(layer)


def _detach(layer: nn.Module) -> None:
    layer._modules.pop(CHILD, None)
    layer.__class__ = vars(layer).pop("unforged_class", type(layer))
    for key in [key for key, hook in layer._forward_pre_hooks.items() if hook is _called]:
        del layer._forward_pre_hooks[key]


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
        if isinstance(layer, WithTTA):
            raise SiteError("the model is a single layer with TTA, and cannot be forged as well; wrap it in a module")
        if "forward" in vars(layer):
            raise SiteError(f"site '{site.name}' has a forward set on the object, which no class can forge; exclude it")
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise SiteError(f"sites must be distinct, got '{max(names, key=names.count)}' more than once")
