"""What forging does inside a model: suppression, singular values, bounds and measured gains, site by site."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lipforge.analysis.gather import SiteFigures, gains, observe, spread
from lipforge.analysis.spectra import jacobian_norms
from lipforge.batching import ImageSource, batches, check_images, device_of, image_count
from lipforge.errors import InputError
from lipforge.forge import forged, forges, plain
from lipforge.progress import progress
from lipforge.results.analysis import Analysis, NetworkReport, ProductBound

Attacker = Callable[[Tensor, Tensor], Tensor]
"""Images and labels to adversarial images of the same shape."""

Sites = dict[str, SiteFigures]
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

    `adversarial` are the adversarial versions of all images in their order, or a function that makes them from a batch
    of images and labels; without it the figures that need them are None. Singular values cost tens of passes per
    image and are taken on the first `spectral_images`; `tolerance` is the relative residual where they stop.
    """
    if spectral_images < 0 or steps < 1 or not tolerance > 0:
        raise InputError(
            "spectral_images must not be negative, steps at least 1 and tolerance above 0, "
            f"got {spectral_images}, {steps} and {tolerance}"
        )
    views, found = {"plain": plain(model), "forged": forged(model)}, forges(model)
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
