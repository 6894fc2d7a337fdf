"""The one-liner: find the sites, insert forged functions, calibrate them."""

from collections.abc import Mapping, Sequence

from torch import nn

from lipforge.batching import BATCH_SIZE, ImageSource, peek
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
    sample, images = peek(images, batch_size)
    sites = find_sites(model, sample, rules=rules, include=include, exclude=exclude)
    try:
        insert_(model, sites, mask=mask)
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
