"""What forging does inside a model: suppression, singular values, bounds and measured gains, site by site."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipforge.analysis.spectra import LINEAR, gershgorin, jacobian_norms, largest_singular, operator_of
from lipforge.batching import ImageSource, batches, check_images, device_of, image_count
from lipforge.errors import InputError
from lipforge.forge import Forge, forged, plain, with_tta
from lipforge.forge.change import change_of
from lipforge.forge.insert import CHILD, refuse_affine, require_forges
from lipforge.progress import progress
from lipforge.recording import eager
from lipforge.results.analysis import Analysis, LayerReport, NetworkReport, ProductBound, Spread

Attacker = Callable[[Tensor, Tensor], Tensor]
"""Images and labels to adversarial images of the same shape."""

Sites = dict[str, "SiteFigures"]
Network = dict[str, list[Tensor]]

GATHERED = ("gain_plain", "gain_forged", "jacobian_plain", "jacobian_forged")


def analyse(
    model: nn.Module,
    data: ImageSource,
    adversarial: Tensor | Attacker | None = None,
    *,
    spectral_images: int = 16,
    tolerance: float = 1e-3,
    steps: int = 100,
    batch_size: int = 32,
    model_name: str = "",
    data_name: str = "images",
    attack: str = "",
    show_progress: bool | None = None,
) -> Analysis:
    """The report of every forged site of `model` on the images of `data`, in the order of its modules.

    `adversarial` are the adversarial versions of all images, or a function that makes them from images and labels;
    without it the figures that need them are None. Singular values cost tens of passes per image and are taken on the
    first `spectral_images`; they stop at the relative residual `tolerance`, or after so many Lanczos `steps`. TTA is
    left out: every figure is of an image as it is.
    """
    if spectral_images < 0 or steps < 1 or not tolerance > 0:
        raise InputError(
            "spectral_images must not be negative, steps at least 1 and tolerance above 0, "
            f"got {spectral_images}, {steps} and {tolerance}"
        )
    found = require_forges(model)
    refuse_affine(model, "analyse")
    views = {"plain": plain(model), "forged": forged(with_tta(model, None))}
    layers = {name: views["forged"].get_submodule(name) for name in found}
    sites = {name: SiteFigures(layers[name], forge, tolerance, steps) for name, forge in found.items()}
    network: Network = {name: [] for name in GATHERED}
    done = 0
    with progress("analysing", image_count(data), show=show_progress) as step:
        for images, moved in _pairs(data, adversarial, batch_size, device_of(model)):
            for kind, view in views.items():
                _add_batch(kind, view, sites, network, images, moved, max(0, spectral_images - done))
            done += len(images)
            step(len(images))
    return Analysis(
        model=model_name,
        data=data_name,
        attack=attack,
        mask=", ".join(sorted({str(site.forge.mask) for site in sites.values()})),
        images=done,
        spectral_images=min(done, spectral_images),
        layers=tuple(site.report(name) for name, site in sites.items()),
        product=_product(sites),
        network=NetworkReport(*(spread(torch.cat(network[name]) if network[name] else None) for name in GATHERED)),
        notes=_notes(sites, tolerance, steps),
        change=change_of(views["forged"]),
    )


def _add_batch(
    kind: str, view: nn.Module, sites: Sites, network: Network, images: Tensor, moved: Tensor, spectral: int
) -> None:
    both, clean, spectral = torch.cat([images, moved]), len(images), min(len(images), spectral)
    logits = observe(view, sites, both, lambda name, *seen: sites[name].look(kind, clean, spectral, *seen))
    if len(moved):
        network[f"gain_{kind}"].append(gains(both, logits, clean).cpu())
    slopes = jacobian_norms(view, images[:spectral]) if spectral else None
    if slopes is not None:
        network[f"jacobian_{kind}"].append(slopes.cpu())


def _pairs(
    data: ImageSource, adversarial: Tensor | Attacker | None, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of images with their adversarial versions, or with no image at all where there are none."""
    done = 0
    for batch in batches(data, batch_size):
        images = batch.images.to(device)
        if adversarial is None:
            made = images[:0]
        elif isinstance(adversarial, Tensor):
            made = adversarial[done : done + len(images)].to(images)
        elif batch.labels is None:
            raise InputError("data must carry labels where adversarial is a function: pass an (images, labels) pair")
        else:
            made = adversarial(images, batch.labels.to(device))
        if adversarial is not None and made.shape != images.shape:
            expected, found = tuple(images.shape), tuple(made.shape)
            raise InputError(f"adversarial images must be {expected} like the clean ones, got {found}")
        check_images(made, first=done)
        yield images, made
        done += len(images)
    if isinstance(adversarial, Tensor) and len(adversarial) != done:
        raise InputError(f"adversarial must be one per image, got {len(adversarial)} for {done} images")


def _product(sites: Sites) -> ProductBound | None:
    """The product over the sites that are linear maps and were seen; a product over images is per image."""
    parts = [
        (torch.tensor(site.sigma, dtype=torch.float64), active, masked)
        for site in sites.values()
        if site.sigma and (active := site.all("sigma_plain")) is not None
        if (masked := site.all("sigma_forged")) is not None
    ]
    if not parts:
        return None
    # A layer whose inputs are all masked makes the product 0, which has no logarithm: the factor is then 1e-300.
    logs = [sum(part[at].double().clamp(min=1e-300).log10() for part in parts) for at in range(3)]
    return ProductBound(len(parts), *(float(torch.as_tensor(log).max()) for log in logs))


def _notes(sites: Sites, tolerance: float, steps: int) -> tuple[str, ...]:
    notes = []
    unseen = [name for name, site in sites.items() if not site.figures]
    if unseen:
        notes.append(f"the forward pass never called {', '.join(unseen)}")
    loose = [name for name, site in sites.items() if site.worst_residual > tolerance]
    if loose:
        worst = max(sites[name].worst_residual for name in loose)
        notes.append(
            f"singular values under masks have not converged at {len(loose)} sites ({loose[0]}, ...): the largest "
            f"relative residual is {worst:.1g} after {steps} steps; they are lower bounds"
        )
    jumps = [name for name, site in sites.items() if site.report(name).jump > 0]
    if jumps:
        differ = "between two inputs whose masks differ no singular value bounds the output"
        notes.append(f"the mask jumps at {len(jumps)} sites: {differ}")
    return tuple(notes)


@dataclass
class SiteFigures:
    """One site: lists of one tensor per batch, by what they hold."""

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
        """Add a batch: `clean` images, then their adversarial versions; singular values of the first `spectral`."""
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
    """The model's logits for `images`; on the way `look` is called for each site, at its first call."""
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

    with ExitStack() as hooks, eager():
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
    """What is left of each input, in [0, 1]: after / before, 0 where it is 0 or a mask with a centre replaced it."""
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
