"""Figures of one site, gathered batch by batch while images pass through the model."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lipforge.analysis.spectra import gershgorin, is_linear, largest_singular, operator_of
from lipforge.forge import Forge
from lipforge.forge.insert import CHILD
from lipforge.results.analysis import LayerReport, Spread


class Seen(NamedTuple):
    """One site in one pass: its input before and after the mask, and the layer's output."""

    before: Tensor
    after: Tensor
    out: Any


@dataclass(frozen=True)
class Effort:
    """How exact singular values have to be, and how many Lanczos steps may be spent on it."""

    tolerance: float
    steps: int


@dataclass
class SiteFigures:
    """One site: lists of one tensor per batch, by what they hold."""

    layer: nn.Module
    forge: Forge
    effort: Effort
    figures: dict[str, list[Tensor]] = field(default_factory=dict)
    sigma: float | None = None
    residual: float | None = None
    gershgorin: float | None = None
    worst_residual: float = 0.0

    def look(self, kind: str, seen: Seen, clean: int, spectral: int) -> None:
        """Add a batch whose first `clean` images are clean and the rest their adversarial versions.

        `kind` is "plain" or "forged"; singular values are taken under the masks of the first `spectral` images.
        """
        before, after = seen.before, seen.after
        zero = (before == 0).flatten(1).double().mean(dim=1)
        changed = (before != after).flatten(1).double().mean(dim=1)
        # An image that was misclassified from the start is its own adversarial version, which tells nothing.
        moved = (before[clean:] != before[: len(before) - clean]).flatten(1).any(dim=1)
        for name, values in ((f"zero_{kind}", zero), (f"suppressed_{kind}", changed)):
            self.add(f"{name}_clean", values[:clean])
            self.add(f"{name}_adversarial", values[clean:][moved])
        if not is_linear(self.layer):
            return
        if len(before) > clean:
            self.add(f"gain_{kind}", gains(before, seen.out, clean))
        if spectral:
            self._spectral(kind, before[:spectral], after[:spectral])

    def add(self, name: str, values: Tensor) -> None:
        self.figures.setdefault(name, []).append(values.cpu())

    def all(self, name: str) -> Tensor | None:
        """The figures of that name over all batches."""
        return torch.cat(self.figures[name]) if name in self.figures else None

    def mean(self, name: str) -> float | None:
        values = self.all(name)
        return None if values is None or len(values) == 0 else float(values.mean())

    def report(self, name: str) -> LayerReport:
        """The site's report."""
        threshold = torch.as_tensor(self.forge.threshold).max().item()
        ratios = {
            kind: None if values is None or not self.sigma else values / self.sigma
            for kind in ("plain", "forged")
            for values in [self.all(f"sigma_{kind}")]
        }
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
            ratio_active=spread(ratios["plain"]),
            ratio_forged=spread(ratios["forged"]),
            gershgorin=self.gershgorin,
            gershgorin_forged=spread(self.all("gershgorin_forged")),
            gain_plain=spread(self.all("gain_plain")),
            gain_forged=spread(self.all("gain_forged")),
        )

    def _spectral(self, kind: str, before: Tensor, after: Tensor) -> None:
        operator, absolute = operator_of(self.layer), operator_of(self.layer, absolute=True)
        if self.sigma is None:
            ones = torch.ones_like(operator.items(before)[:1])
            # Tighter than under masks: it is what the masked values are divided by.
            whole = largest_singular(operator, ones, tolerance=self.effort.tolerance / 10, steps=3 * self.effort.steps)
            self.sigma, self.residual = float(whole.values[0]), float(whole.residuals[0])
            self.gershgorin = float(gershgorin(absolute, ones)[0])
        keep = operator.items(kept(self.forge, before, after))
        found = largest_singular(operator, keep, tolerance=self.effort.tolerance, steps=self.effort.steps)
        self.worst_residual = max(self.worst_residual, float(found.residuals.max()))
        # Several tokens of one image are blocks of one map: its largest singular value is that of the largest block.
        self.add(f"sigma_{kind}", found.values.view(len(before), -1).amax(dim=1))
        if kind == "forged":
            self.add("gershgorin_forged", gershgorin(absolute, keep).view(len(before), -1).amax(dim=1))


@torch.no_grad()
def observe(view: nn.Module, sites: Iterable[str], images: Tensor, look: Callable[[str, Seen], None]) -> Tensor:
    """The model's logits for `images`; on the way `look` is called once for each site, at its first call.

    What a site saw is handed on at once, so that nothing is kept. Without a forged function at the site, before and
    after are the same tensor.
    """
    inputs: dict[str, tuple[Tensor, Tensor]] = {}
    seen: set[str] = set()

    def entered(name: str, before: Tensor, after: Tensor) -> None:
        if name not in seen:
            inputs.setdefault(name, (before, after))

    def left(name: str, out: Any) -> None:
        if name in inputs:
            seen.add(name)
            look(name, Seen(*inputs.pop(name), out))

    with ExitStack() as hooks:
        for name in sites:
            layer = view.get_submodule(name)
            forge = layer._modules.get(CHILD)
            if forge is not None:
                hook = forge.register_forward_hook(lambda _, x, out, name=name: entered(name, x[0], out))
            else:
                hook = layer.register_forward_pre_hook(
                    lambda _, x, words, name=name: entered(name, *[_first(x, words)] * 2), with_kwargs=True
                )
            hooks.enter_context(hook)
            hooks.enter_context(layer.register_forward_hook(lambda _, x, out, name=name: left(name, out)))
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


def _first(args: tuple[Any, ...], words: dict[str, Any]) -> Tensor:
    """The first tensor that a layer was called with."""
    return next(value for value in (*args, *words.values()) if isinstance(value, Tensor))
