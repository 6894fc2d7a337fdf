"""What goes into and comes out of each site in one forward pass, handed on at once so that nothing is kept."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lipforge.forge.insert import CHILD


class Seen(NamedTuple):
    """One site in one pass: its input before and after the mask, and the layer's output."""

    before: Tensor
    after: Tensor
    out: Any


@torch.no_grad()
def observe(view: nn.Module, sites: Iterable[str], images: Tensor, look: Callable[[str, Seen], None]) -> Tensor:
    """The model's logits for `images`; on the way `look` is called once for each site, at its first call.

    Without a forged function at the site, before and after are the same tensor.
    """
    inputs: dict[str, tuple[Tensor, Tensor]] = {}
    seen: set[str] = set()
    handles = []

    def taken(name: str, before: Tensor, after: Tensor) -> None:
        if name not in seen:
            inputs.setdefault(name, (before, after))

    def done(name: str, out: Any) -> None:
        if name in inputs:
            seen.add(name)
            look(name, Seen(*inputs.pop(name), out))

    for name in sites:
        layer = view.get_submodule(name)
        forge = layer._modules.get(CHILD)
        if forge is not None:
            handles.append(forge.register_forward_hook(lambda _, x, out, name=name: taken(name, x[0], out)))
        else:
            handles.append(
                layer.register_forward_pre_hook(
                    lambda _, x, words, name=name: taken(name, *[_first(x, words)] * 2), with_kwargs=True
                )
            )
        handles.append(layer.register_forward_hook(lambda _, x, out, name=name: done(name, out)))
    try:
        logits: Tensor = view(images)
    finally:
        for handle in handles:
            handle.remove()
    return logits


def _first(args: tuple[Any, ...], words: dict[str, Any]) -> Tensor:
    """The first tensor that a layer was called with."""
    return next(value for value in (*args, *words.values()) if isinstance(value, Tensor))
