"""The one-liner: find the sites, insert forged functions, calibrate them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches
from lipforge.errors import SiteError
from lipforge.forge.calibrate import calibrate_
from lipforge.forge.insert import forges, insert_, remove_, set_ratio_
from lipforge.forge.masks import Mask
from lipforge.forge.recipe import Recipe, describe_source
from lipforge.forge.sites import DEFAULT_RULES, find_sites


def forge_(
    model: nn.Module,
    images: ImageSource,
    *,
    mask: Mask | None = None,
    ratio: float | Mapping[str, float] = 2**-7,
    rules: Sequence[str] = DEFAULT_RULES,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    per_channel: bool = False,
    quantile: float | None = None,
    batch_size: int = BATCH_SIZE,
    data: str | None = None,
    show_progress: bool | None = None,
) -> Recipe:
    """Forge `model` in one pass over `images`, and return the recipe. The mask is Step unless another is given.

    On any error the model is as it was before.
    """
    found = forges(model)
    if found:
        raise SiteError(f"the model is forged already ({len(found)} sites); call remove_ first, or calibrate_ again")
    source = describe_source(images) if data is None else data
    sample, images = _peek(images, batch_size)
    insert_(model, find_sites(model, sample, rules=rules, include=include, exclude=exclude), mask=mask)
    try:
        set_ratio_(model, ratio)
        return calibrate_(
            model,
            images,
            per_channel=per_channel,
            quantile=quantile,
            batch_size=batch_size,
            data=source,
            show_progress=show_progress,
        )
    except BaseException:
        remove_(model)
        raise


def _peek(images: ImageSource, batch_size: int) -> tuple[Tensor, ImageSource]:
    """The first image, and a source that still has all of them even if the given one can be read only once."""
    if not isinstance(images, Iterator):
        return next(batches(images, batch_size)).images[:1], images
    first: Any = next(images, None)
    head = [] if first is None else [first]
    return next(batches(head, batch_size)).images[:1], itertools.chain(head, images)
