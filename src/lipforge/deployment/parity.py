"""Whether an exported file gives the logits of its model, on real images; differences at thresholds are set apart."""

import copy
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from lipforge.batching import ImageSource, batches, image_count
from lipforge.errors import ExportError
from lipforge.forge import Forge, forges
from lipforge.outputs import logits_in
from lipforge.progress import progress
from lipforge.recording import eager
from lipforge.results import Parity

TOLERANCE, ROUNDING = 1e-4, 1e-5
"""How far logits may be apart; for logits above 10 this share of the largest, as float32 rounds in shares."""

JUMP = 0.02
"""The same for images with an activation at a threshold, as a share of the largest logit: one activation of many."""

SLACK = 4
"""Another runtime may round this many times as coarsely as torch does in float32, beside float64."""


@torch.no_grad()
def compare(
    model: nn.Module,
    exported: Callable[[Tensor], Tensor],
    images: ImageSource,
    *,
    batch_size: int,
    show_progress: bool | None = None,
) -> Parity:
    """`exported` beside the eager `model` on all images; an error if they differ by more than rounding explains."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with eager(), progress("checking", image_count(images), show=show_progress) as step:
        for batch in batches(images, batch_size):
            # One image first, then the others: the batch size must be free.
            for x in (batch.images[:1], batch.images[1:]) if not parts else (batch.images,):
                if len(x):
                    x = x.to("cpu", torch.float32)
                    parts.append((x, logits_in(model(x)), exported(x)))
            step(len(batch.images))
        return _judged(model, parts)


def _judged(model: nn.Module, parts: list[tuple[Tensor, Tensor, Tensor]]) -> Parity:
    images, expected = (torch.cat([part[index] for part in parts]) for index in (0, 1))
    found = torch.cat([part[2] for part in parts]).to(expected)
    if found.shape != expected.shape:
        raise ExportError(f"the exported model gives {tuple(found.shape)}, the model {tuple(expected.shape)}")
    scale = float(expected.abs().max())
    tolerance = max(TOLERANCE, ROUNDING * scale)
    difference = (found - expected).abs().nan_to_num(torch.inf).amax(dim=1)
    same = found.argmax(dim=1) == expected.argmax(dim=1)
    apart = (difference > tolerance) | ~same
    for index in apart.nonzero().flatten().tolist():
        if difference[index] > JUMP * scale or not on_threshold(model, images[index : index + 1]):
            raise ExportError(
                f"the exported model differs from the model by {float(difference[index]):.2g} in a logit of image "
                f"{index}, and {tolerance:.1g} is allowed; nothing was written. check=False (--no-check) "
                "writes it anyway, and says so in the file"
            )
    largest = [float(part.max()) if len(part) else 0.0 for part in (difference[~apart], difference[apart])]
    return Parity(len(same), int(same.sum()), largest[0], tolerance, int(apart.sum()), largest[1])


def on_threshold(model: nn.Module, image: Tensor) -> bool:
    """Whether an activation lies so near the threshold of a mask that jumps that rounding decides about it.

    Rounding is what float32 and float64 differ by at that site, on this image, times SLACK.
    """
    sites = [forge for forge in forges(model).values() if _jumps(forge)]
    try:
        double = copy.deepcopy(model).double()
        exact = [forge for forge in forges(double).values() if _jumps(forge)]
        seen, truth = _inputs(model, sites, image), _inputs(double, exact, image.double())
    except Exception:  # a model that cannot be copied, or that cannot run in float64: nothing is explained
        return False
    return any(_is_near(forge, x, exactly) for (forge, x), (_, exactly) in zip(seen, truth, strict=True))


def _is_near(forge: Forge, x: Tensor, exact: Tensor) -> bool:
    rounding = (x.double() - exact).abs().max()
    threshold, centre = forge._figures(exact)
    distance = ((exact if centre is None else exact - centre).abs() - threshold).abs()
    return bool((distance <= SLACK * rounding).any())


def _jumps(forge: Forge) -> bool:
    threshold = forge.threshold
    return forge.mask.jump(float(threshold.max() if isinstance(threshold, Tensor) else threshold)) > 0


def _inputs(model: nn.Module, sites: list[Forge], image: Tensor) -> list[tuple[Forge, Tensor]]:
    """What each forged function takes, in the order of the calls."""
    seen: list[tuple[Forge, Tensor]] = []

    def watch(forge: Any, args: tuple[Tensor]) -> None:
        seen.append((forge, args[0].detach()))

    with ExitStack() as hooks:
        for forge in sites:
            hooks.enter_context(forge.register_forward_pre_hook(watch))
        model(image)
    return seen
