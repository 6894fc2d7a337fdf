"""Figures of one site, gathered batch by batch while images pass through the model."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipforge.analysis.spectra import LINEAR, gershgorin, largest_singular, operator_of
from lipforge.forge import Forge
from lipforge.forge.insert import CHILD
from lipforge.results.analysis import LayerReport, Spread


@dataclass
class SiteFigures:
    """One site: lists of one tensor per batch, by what they hold.

    Singular values stop at the relative residual `tolerance`, or after so many Lanczos `steps`.
    """

    layer: nn.Module
    forge: Forge
    tolerance: float
    steps: int
    figures: dict[str, list[Tensor]] = field(default_factory=dict)
    sigma: float | None = None
    residual: float | None = None
    gershgorin: float | None = None
    worst_residual: float = 0.0

    def look(self, kind: str, clean: int, spectral: int, before: Tensor, after: Tensor, out: Any) -> None:
        """Add a batch whose first `clean` images are clean and the rest their adversarial versions.

        `kind` is "plain" or "forged"; singular values are taken under the masks of the first `spectral` images. The
        site's input comes before and after the mask, and then the layer's output.
        """
        zero = (before == 0).flatten(1).double().mean(dim=1)
        changed = (before != after).flatten(1).double().mean(dim=1)
        # An image that was misclassified from the start is its own adversarial version, which tells nothing.
        moved = (before[clean:] != before[: len(before) - clean]).flatten(1).any(dim=1)
        for name, values in ((f"zero_{kind}", zero), (f"suppressed_{kind}", changed)):
            self.add(f"{name}_clean", values[:clean])
            self.add(f"{name}_adversarial", values[clean:][moved])
        linear = isinstance(self.layer, LINEAR)
        if linear and len(before) > clean:
            self.add(f"gain_{kind}", gains(before, out, clean))
        if linear and spectral:
            self._spectral(kind, before[:spectral], after[:spectral])

    def add(self, name: str, values: Tensor) -> None:
        self.figures.setdefault(name, []).append(values.cpu())

    def all(self, name: str) -> Tensor | None:
        """The figures of that name over all batches."""
        return torch.cat(self.figures[name]) if name in self.figures else None

    def spread(self, name: str, over: float | None = 1.0) -> Spread | None:
        """Mean and maximum of the figures of that name, divided by `over`; None without any, or without a divisor."""
        values = self.all(name)
        return None if values is None or not over else spread(values / over)

    def mean(self, name: str) -> float | None:
        return getattr(self.spread(name), "mean", None)

    def report(self, name: str) -> LayerReport:
        threshold = torch.as_tensor(self.forge.threshold).max().item()
        return LayerReport(
            name=name,
            layer=type(self.layer).__name__,
            bound=float(self.forge.bound.max()),
            threshold=threshold,
            max_slope=self.forge.mask.max_slope,
            jump=self.forge.mask.jump(threshold),
            zero_clean=self.mean("zero_forged_clean"),
            zero_adversarial=self.mean("zero_forged_adversarial"),
            suppressed_clean=self.mean("suppressed_forged_clean"),
            suppressed_adversarial=self.mean("suppressed_forged_adversarial"),
            sigma=self.sigma,
            sigma_residual=self.residual,
            ratio_active=self.spread("sigma_plain", over=self.sigma),
            ratio_forged=self.spread("sigma_forged", over=self.sigma),
            gershgorin=self.gershgorin,
            gershgorin_forged=self.spread("gershgorin_forged"),
            gain_plain=self.spread("gain_plain"),
            gain_forged=self.spread("gain_forged"),
        )

    def _spectral(self, kind: str, before: Tensor, after: Tensor) -> None:
        operator, absolute = operator_of(self.layer), operator_of(self.layer, absolute=True)
        if self.sigma is None:
            ones = torch.ones_like(operator.items(before)[:1])
            # Tighter than under masks: it is what the masked values are divided by.
            whole = largest_singular(operator, ones, tolerance=self.tolerance / 10, steps=3 * self.steps)
            self.sigma, self.residual = float(whole.values[0]), float(whole.residuals[0])
            self.gershgorin = float(gershgorin(absolute, ones)[0])
        keep = operator.items(kept(self.forge, before, after))
        found = largest_singular(operator, keep, tolerance=self.tolerance, steps=self.steps)
        self.worst_residual = max(self.worst_residual, float(found.residuals.max()))
        # Several tokens of one image are blocks of one map: its largest singular value is that of the largest block.
        self.add(f"sigma_{kind}", found.values.view(len(before), -1).amax(dim=1))
        if kind == "forged":
            self.add("gershgorin_forged", gershgorin(absolute, keep).view(len(before), -1).amax(dim=1))


Look = Callable[[str, Tensor, Tensor, Any], None]
"""Called with a site's name, its input before and after the mask, and the layer's output."""


@torch.no_grad()
def observe(view: nn.Module, sites: Iterable[str], images: Tensor, look: Look) -> Tensor:
    """The model's logits for `images`; on the way `look` is called once for each site, at its first call.

    What a site saw is handed on at once, so that nothing is kept. Without a forged function at the site, before and
    after are the same tensor.
    """
    inputs: dict[str, tuple[Tensor, Tensor] | None] = {}

    def plain_input(name: str, layer: nn.Module, args: Any, words: dict[str, Any]) -> None:
        first = next(value for value in (*args, *words.values()) if isinstance(value, Tensor))
        inputs.setdefault(name, (first, first))

    def forged_input(name: str, forge: nn.Module, args: Any, out: Tensor) -> None:
        inputs.setdefault(name, (args[0], out))

    def output(name: str, layer: nn.Module, args: Any, out: Any) -> None:
        seen = inputs.get(name)
        if seen is not None:
            inputs[name] = None
            look(name, *seen, out)

    with ExitStack() as hooks:
        for name in sites:
            layer = view.get_submodule(name)
            forge = layer._modules.get(CHILD)
            if forge is not None:
                hooks.enter_context(forge.register_forward_hook(partial(forged_input, name)))
            else:
                hooks.enter_context(layer.register_forward_pre_hook(partial(plain_input, name), with_kwargs=True))
            hooks.enter_context(layer.register_forward_hook(partial(output, name)))
        logits: Tensor = view(images)
    return logits


def kept(forge: Forge, before: Tensor, after: Tensor) -> Tensor:
    """What is left of each input, in [0, 1]: forged over plain, 0 where the plain input is 0.

    A mask with a centre replaces values, so that what it changes is gone.
    """
    if forge.centre is not None:
        return ((before == after) & (before != 0)).to(before.dtype)
    return torch.where(before != 0, after / torch.where(before != 0, before, 1), 0).clamp(0, 1)


def gains(inputs: Tensor, outputs: Tensor, clean: int) -> Tensor:
    """|out' - out| / |in' - in| of each clean image and its adversarial version, where they differ."""
    moved: Tensor = (inputs[clean:] - inputs[:clean]).flatten(1).double().norm(dim=1)
    answer: Tensor = (outputs[clean:] - outputs[:clean]).flatten(1).double().norm(dim=1)
    return answer[moved > 0] / moved[moved > 0]


def spread(values: Tensor | None) -> Spread | None:
    """Mean and maximum of (N,) values; None without any."""
    if values is None or len(values) == 0:
        return None
    return Spread(float(values.double().mean()), float(values.max()))
