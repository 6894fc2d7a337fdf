"""Which change of a model is at work, as results name it."""

from torch import nn

from lipforge.errors import LipforgeError
from lipforge.forge.head import head_of
from lipforge.forge.insert import forges
from lipforge.forge.recipe import Recipe, bare_recipe
from lipforge.forge.tta import tta_of
from lipforge.results.change import Change


def change_of(model: nn.Module) -> Change | None:
    """What lipforge added to `model` that is at work; None if nothing is, as in a model whose functions are plain."""
    try:
        masked = any(forge.mode not in ("plain", "track") for forge in forges(model).values())
        if not masked and tta_of(model) is None and head_of(model) is None:
            return None
        return _named(bare_recipe(model))
    except LipforgeError:  # several masks, or TTA inside: no recipe, but a change all the same
        masks = {str(forge.mask): None for forge in forges(model).values()}
        return Change("changed", mask=", ".join(masks) or None)


def _named(recipe: Recipe) -> Change:
    ratios = {name: site.ratio for name, site in recipe.sites.items()}
    return Change(
        label=recipe.label,
        mask=str(recipe.mask) if ratios else None,
        ratio=recipe.ratio,
        ratios=ratios if ratios and recipe.ratio is None else None,
        tta=None if recipe.tta is None else str(recipe.tta),
        recipe=recipe.digest,
    )
