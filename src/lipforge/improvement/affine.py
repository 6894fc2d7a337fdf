"""A scale and a shift per channel at the sites, tuned against an inner attack while every weight is frozen."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lipforge import rng
from lipforge.attacks import cross_entropy, logits_of
from lipforge.attacks.folding import Laid, folded_copy
from lipforge.batching import BATCH_SIZE, LabelledSource, as_data, check_eval, device_of
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.sites import Site, unwrap
from lipforge.improvement.head import (
    LEAST_FITTED,
    HeldOut,
    Numbered,
    ascend,
    check_range,
    first_images,
    judge,
    read_batches,
    split_held_out,
)
from lipforge.progress import progress
from lipforge.recording import eager
from lipforge.types import Classifier, Threat

JUDGEMENTS = 3
"""How often in the course of a fit the held-out images are attacked."""

Channels = dict[str, tuple[Tensor, Tensor]]
"""For each site's name a scale (C,) and a shift (C,)."""


@dataclass(frozen=True, eq=False)
class AffineFit:
    """A scale (C,) and a shift (C,) for each site's input; 1 and 0 everywhere where no step helped.

    `kept_steps` says after how many of the `steps` they were found; 0 says that they change nothing. `before` and
    `after` are the model without and with them on the held-out images, each attacked by itself.
    """

    channels: Channels
    kept_steps: int
    before: HeldOut
    after: HeldOut
    images: int
    steps: int
    seconds: float


def fit_affine(
    model: nn.Module,
    sites: Iterable[Site],
    data: LabelledSource,
    threat: Threat,
    *,
    steps: int = 300,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = 0.003,
    inner_steps: int = 3,
    held_out: float = 0.2,
    seed: int = 0,
    show_progress: bool | None = None,
) -> AffineFit:
    """Scale and shift per input channel of each site, tuned on adversarial images of `data`; the model is unchanged.

    Adam with a cosine schedule minimises the cross-entropy of images that `inner_steps` of PGD attack at every step.
    Sites of attention modules, of in-place activations and of layers whose number of channels varies are left out. A
    few states along the way are attacked on the share `held_out` of the images, and the one with the most robust images
    comes back: 1 and 0, unless another has more than the model itself. The same seed gives the same tensors.
    """
    started, data, model = time.monotonic(), as_data(data), unwrap(model)
    check_eval(model)
    check_range(1, math.inf, steps=steps, batch_size=batch_size, inner_steps=inner_steps)
    if not 0 < learning_rate < math.inf:
        raise InputError(f"learning_rate must be above 0, got {learning_rate}")
    sites, sample = usable(model, sites), first_images(data, device_of(model))
    fitted, judged = split_held_out(len(data), held_out, LEAST_FITTED, seed=seed)
    with _tunable(model, sites, sample) as (classifier, scales), progress("tuning", steps, show=show_progress) as step:
        classes = logits_of(classifier, sample[:1]).shape[1]
        read = partial(read_batches, data, classes, batch_size=batch_size, device=sample.device)

        def judged_now() -> HeldOut:
            return judge(classifier, read(judged), threat=threat, seed=seed)

        kept, kept_steps = _channels(scales), 0
        before = after = judged_now()
        attack = partial(ascend, classifier, threat=threat, steps=inner_steps, seed=seed)
        batches = read(_order(fitted, steps * batch_size, seed), step=lambda count: step(1))
        for number in _tune(classifier, scales, batches, attack, steps=steps, learning_rate=learning_rate):
            found = judged_now()
            if found.robust > after.robust:
                kept, kept_steps, after = _channels(scales), number, found
    return AffineFit(kept, kept_steps, before, after, len(fitted), steps, time.monotonic() - started)


def usable(model: nn.Module, sites: Iterable[Site]) -> list[Site]:
    """The sites whose input can be scaled by a hook from outside; an error if there is none."""
    modules = dict(model.named_modules())
    found = []
    for site in sites:
        if site.name not in modules:
            raise SiteError(f"the model has no module '{site.name}'; was the site found in another model?")
        layer = modules[site.name]
        if site.in_features and not isinstance(layer, nn.MultiheadAttention) and not getattr(layer, "inplace", False):
            found.append(site)
    if not found:
        raise SiteError(
            "sites must have one with a fixed number of channels that is neither an attention module nor an in-place "
            "activation; find_sites(model) finds some"
        )
    return found


class _Scale:
    """A site's scale and shift, which is in multiples of `unit`, so that one learning rate fits all sites."""

    def __init__(self, site: Site, like: Tensor) -> None:
        self.name, self.dim, self.unit = site.name, site.channel_dim, 0.0
        self.scale = like.new_ones(site.in_features).requires_grad_()
        self.shift = like.new_zeros(site.in_features).requires_grad_()

    def measure(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        """A hook that takes the root mean square of the input for the unit."""
        self.unit = float(args[0].square().mean().sqrt())
        if not math.isfinite(self.unit):
            raise ModelError(f"site '{self.name}' saw a non-finite activation; look at the layers before it")

    def apply(self, layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """A hook that scales and shifts the input."""
        x, shape = args[0], [1] * args[0].ndim
        shape[self.dim] = -1
        return (x * self.scale.view(shape) + self.unit * self.shift.view(shape), *args[1:])


@contextmanager
def _tunable(model: nn.Module, sites: list[Site], sample: Tensor) -> Iterator[tuple[Classifier, list[_Scale]]]:
    """A classifier with a scale and a shift at each site: a folded copy where there is one, or the model with hooks."""
    classifier, _ = folded_copy(model, sample, "float32")
    module = classifier.module if isinstance(classifier, Laid) else model
    scales = [_Scale(site, sample) for site in sites]
    with eager():
        with _hooks(module, {scale.name: scale.measure for scale in scales}), torch.no_grad():
            logits_of(classifier, sample, whole=True)
        with _hooks(module, {scale.name: scale.apply for scale in scales}):
            yield classifier, scales


@contextmanager
def _hooks(module: nn.Module, hooks: dict[str, Callable[..., Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, hook in hooks.items():
            stack.enter_context(module.get_submodule(name).register_forward_pre_hook(hook))
        yield


def _tune(
    classifier: Classifier,
    scales: list[_Scale],
    batches: Iterator[Numbered],
    attack: Callable[..., Tensor],
    *,
    steps: int,
    learning_rate: float,
) -> Iterator[int]:
    """Take the steps, one batch each; the number of steps so far comes out whenever it is time to judge."""
    free = [part for scale in scales for part in (scale.scale, scale.shift)]
    optimizer = torch.optim.Adam(free, learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    stops = {math.ceil(steps * part / JUDGEMENTS) for part in range(1, JUDGEMENTS + 1)}
    for number, batch in enumerate(batches, start=1):
        x_adv = attack(batch, counter=number)
        with torch.enable_grad():
            loss = cross_entropy(logits_of(classifier, x_adv, batch.ids), batch.y).mean()
        # Not backward(): it would leave gradients at the weights of the model.
        for part, gradient in zip(free, torch.autograd.grad(loss, free), strict=True):
            part.grad = gradient
        optimizer.step()
        schedule.step()
        if number in stops:
            yield number


def _order(ids: Tensor, count: int, seed: int) -> Tensor:
    """`count` of these positions: all of them in random order, then again in another."""
    epochs = range(math.ceil(count / len(ids)))
    orders = [rng.permutation(seed, len(ids), stream="affine-order", counter=epoch) for epoch in epochs]
    return ids[torch.cat(orders)[:count]]


def _channels(scales: list[_Scale]) -> Channels:
    return {part.name: (part.scale.detach().clone(), part.unit * part.shift.detach()) for part in scales}
