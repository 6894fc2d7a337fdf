"""The parts that need calibration images: each is fitted once, kept in the run, and becomes a recipe of its own."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from lipforge.auditing import classes_of
from lipforge.batching import BATCH_SIZE, ImageData
from lipforge.errors import ModelError, SiteError
from lipforge.forge import TTA, Forge, Head, Recipe, find_sites, forge_, plain, recipe_of
from lipforge.forge.recipe import SiteRecipe, architecture_digest, recipe_from_dict, weights_digest
from lipforge.improvement.affine import fit_affine
from lipforge.improvement.head import fit_head
from lipforge.ranks import alone
from lipforge.runs import Experiment
from lipforge.runs.identity import threat_slug
from lipforge.runs.workers import work
from lipforge.types import Threat

RATIO = 2.0**-7  # of forged functions, the middle one of those that the paper tries


class Part(NamedTuple):
    """A part's recipe, the seconds that fitting it took, and why it is not tried, if so."""

    recipe: Recipe | None
    seconds: float
    remark: str


Fitted = dict[str, Part]


def fit_parts(
    experiment: Experiment, model: nn.Module, names: Sequence[str], threat: Threat, *, ratio: float, seed: int
) -> Fitted:
    """The recipes of these parts, fitted on the experiment's images; what the run has is not fitted again."""
    fits: dict[str, Callable[[], tuple[Recipe, str]]] = {
        "forge": lambda: (_forge(model, experiment.data, ratio), ""),
        "head": lambda: _head(model, experiment.data, threat, seed, experiment.show_progress),
        "affine": lambda: _affine(model, experiment.data, threat, seed, experiment.show_progress),
    }
    found: Fitted = {}
    for name in names:
        config: dict[str, Any] = {"threat": {"norm": threat.norm, "eps": threat.eps}, "seed": seed}
        config = {"ratio": ratio} if name == "forge" else config  # what a part does not depend on may change
        # One shard for all images: one rank fits, and the others read what it found.
        task = experiment.task(
            f"improve-fit__{name}__{threat_slug(threat)}", {"base": model}, config, positions=range(1), shard_size=1
        )

        def compute(part: range, fit: Callable[[], tuple[Recipe, str]] = fits[name]) -> dict[str, Any]:
            started = time.perf_counter()
            try:
                with alone():  # the other ranks wait for what this one finds
                    recipe, remark = fit()
            except (ModelError, SiteError) as error:  # as for a head where the last layer is not linear
                return {"recipe": None, "seconds": 0.0, "remark": str(error)}
            return {"recipe": recipe.to_dict(), "seconds": time.perf_counter() - started, "remark": remark}

        (kept,) = work(task, compute, f"fitting {name}", show_progress=False)
        recipe = None if kept["recipe"] is None else recipe_from_dict(kept["recipe"])
        found[name] = Part(recipe, kept["seconds"], kept["remark"])
    return found


def combined(model: nn.Module, parts: Sequence[Recipe | None], tta: TTA | None) -> Recipe:
    """One recipe of several and of TTA; a site may get its mask from one of them and its affine part from another."""
    whole = replace(_empty(model), tta=tta)
    for part in filter(None, parts):
        sites = dict(whole.sites)
        for name, site in part.sites.items():
            before = sites.get(name, site)
            masked, affine = (site, before) if before.scale is not None else (before, site)
            sites[name] = replace(masked, scale=affine.scale, shift=affine.shift)
        mask = part.mask if any(site.ratio for site in part.sites.values()) else whole.mask
        seen, head = part.images_seen, part.head or whole.head
        whole = replace(whole, mask=mask, sites=sites, head=head, images_seen=seen, data=part.data)
    return whole


def _forge(model: nn.Module, data: ImageData, ratio: float) -> Recipe:
    copied = plain(model)
    forge_(copied, data, ratio=ratio)
    return recipe_of(copied)


def _head(
    model: nn.Module, data: ImageData, threat: Threat, seed: int, show_progress: bool | None
) -> tuple[Recipe, str]:
    _check_classes(model, data)
    fit = fit_head(model, data, threat, seed=seed, show_progress=show_progress)
    head = Head(fit.layer, fit.weight, fit.bias)
    remark = "" if fit.kept_rounds else "no refit was better on held-out calibration images"
    return replace(_empty(model), head=head, images_seen=len(data), data=data.name), remark


def _check_classes(model: nn.Module, data: ImageData) -> None:
    """Raise if a class of the model has no image: a fit would unlearn it, and no held-out image of it would tell. The
    head is then left out, as for a model without one."""
    labels = {int(label) for _, labels in data.batches(BATCH_SIZE) for label in labels}
    classes = classes_of(model, data)
    if missing := sorted(set(range(classes)) - labels):
        named = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise ModelError(
            f"data must have images of every class to refit the head, but {len(missing)} of {classes} classes have "
            f"none ({named}); give more images, or leave the head as it is"
        )


def _affine(
    model: nn.Module, data: ImageData, threat: Threat, seed: int, show_progress: bool | None
) -> tuple[Recipe, str]:
    x, _ = data.batch([0])
    sites = {site.name: site for site in find_sites(model, x)}
    fit = fit_affine(model, list(sites.values()), data, threat, seed=seed, show_progress=show_progress)
    recipes = {
        name: SiteRecipe(
            sites[name].layer,
            sites[name].in_features,
            sites[name].channel_dim,
            ratio=0.0,
            bound=0.0,
            scale=scale.tolist(),
            shift=shift.tolist(),
        )
        for name, (scale, shift) in fit.channels.items()
    }
    remark = "" if fit.kept_steps else "no step was better on held-out calibration images"
    return replace(_empty(model), sites=recipes, images_seen=len(data), data=data.name), remark


def _empty(model: nn.Module) -> Recipe:
    calibration = vars(Forge().calibration)
    return Recipe(
        Forge().mask, {}, **calibration, architecture=architecture_digest(model), weights=weights_digest(model)
    )
