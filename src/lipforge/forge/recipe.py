"""A recipe: all that lipforge adds to a model, as a small JSON file that can be read, compared and applied."""

import base64
import binascii
import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lipforge.batching import ImageData, ImageSource
from lipforge.digests import state_tensors, tensor_bytes
from lipforge.errors import InputError, RecipeError
from lipforge.forge.graph import ACTIVATIONS, LAYERS
from lipforge.forge.head import Head, head_of, misfit, own_tensors, set_head_
from lipforge.forge.insert import forges, insert_, is_changed, remove_, require_forges
from lipforge.forge.layer import Calibration, Forge, check_ratio
from lipforge.forge.masks import Mask, mask_from_dict, mask_to_dict
from lipforge.forge.sites import Site, some, unwrap
from lipforge.forge.tta import TTA, Transform, set_tta_, tta_of
from lipforge.logs import warn
from lipforge.records import lipforge_version, read_json, write_json

FORMAT = 2
FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class SiteRecipe:
    """One forged function: what it sits in front of, and its figures; `scale` and `shift` are its affine part."""

    layer: str
    in_features: int
    channel_dim: int
    ratio: float
    bound: float | list[float]
    centre: list[float] | None = None
    scale: list[float] | None = None
    shift: list[float] | None = None

    def __post_init__(self) -> None:
        check_ratio(self.ratio)
        if not isinstance(self.layer, str) or type(self.in_features) is not int or self.in_features < 0:
            raise InputError(f"in_features must be a count and layer a name, got {self.in_features!r}, {self.layer!r}")
        if type(self.channel_dim) is not int or not -4 <= self.channel_dim <= -1:
            raise InputError(f"channel_dim must lie in -4..-1, got {self.channel_dim!r}")
        _check_values("bound", self.bound if isinstance(self.bound, list) else [self.bound], low=0)
        if isinstance(self.bound, list) and len(self.bound) != self.in_features:
            raise InputError(f"bound must have one value per channel ({self.in_features}), got {len(self.bound)}")
        if self.centre is not None:
            _check_values("centre", self.centre, low=-FLOAT32_MAX)
            if not isinstance(self.bound, list) or len(self.centre) != len(self.bound):
                raise InputError("centre must have one value per channel, as bound has")
        for name, values in (("scale", self.scale), ("shift", self.shift)):
            if values is not None:
                _check_values(name, values, low=-FLOAT32_MAX)
        if any((values is None) != (self.scale is None) for values in (self.scale, self.shift)) or (
            self.scale is not None and not len(self.scale) == len(self.shift or ()) == self.in_features
        ):
            raise InputError(f"scale and shift must have one value per channel each ({self.in_features})")


@dataclass(frozen=True)
class Recipe:
    """A mask, a ratio and a bound for each site, TTA and another head, each where there is one; and digests of the
    model's own tensors: shapes and bytes."""

    mask: Mask
    sites: dict[str, SiteRecipe]
    images_seen: int
    data: str
    statistic: str
    architecture: str
    weights: str
    tta: TTA | None = None
    head: Head | None = None
    lipforge: str = field(default_factory=lipforge_version)
    format: int = FORMAT

    @property
    def ratio(self) -> float | None:
        """The ratio that all sites share, or None if they differ."""
        ratios = {site.ratio for site in self.sites.values()}
        return ratios.pop() if len(ratios) == 1 else None

    @property
    def bounds(self) -> dict[str, float | list[float]]:
        """The bound of each site, b in the paper."""
        return {name: site.bound for name, site in self.sites.items()}

    def save(self, path: str | Path) -> None:
        """Write the recipe as JSON, whole or not at all."""
        write_json(path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The recipe ready for JSON; a head's tensors are base64 of float32, little-endian."""
        tta = None if self.tta is None else {"mean": self.tta.mean, "transforms": [*map(vars, self.tta.transforms)]}
        head = None if self.head is None else {name: _encoded(value) for name, value in vars(self.head).items()}
        return {**vars(self), "mask": mask_to_dict(self.mask), "tta": tta, "head": head}

    @property
    def digest(self) -> str:
        """SHA-256 of what the recipe does to a model, as JSON with sorted keys: mask, sites, TTA and head. A recipe and
        that of a model which it was applied to have the same; version, data and the model's digests are not in it."""
        content = self.to_dict()
        # As `apply_` has them: in float32.
        figures = ("bound", "centre", "scale", "shift")
        sites = {
            name: {key: _rounded(value) if key in figures else value for key, value in vars(site).items()}
            for name, site in self.sites.items()
        }
        doing = {"mask": content["mask"] if sites else None, "sites": sites, "tta": content["tta"]}
        text = json.dumps({**doing, "head": content["head"]}, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parts(self) -> list[str]:
        """What the recipe adds, in the words and the order of `improve`; TTA by its transforms."""
        masks = {site.ratio for site in self.sites.values() if site.ratio}
        affine = any(site.scale is not None for site in self.sites.values())
        found = {"head": self.head is not None, "affine": affine, "forge": masks, str(self.tta): self.tta}
        return [name for name, there in found.items() if there]

    @property
    def label(self) -> str:
        """What results call the changed model: "forged" with forged functions alone, else "head + mirror" and such."""
        return "forged" if self.parts in ([], ["forge"]) else " + ".join(self.parts)

    def apply_(self, model: nn.Module, *, strict: bool = True) -> None:
        """Change `model` by this recipe; another architecture is refused unless `strict=False` and every part fits."""
        self._check_fit(model, strict)
        if self.weights != weights_digest(model):
            again = "; calibrate_ makes new bounds" if self.sites else ""
            warn(f"the recipe was calibrated on other weights{again}")
        if is_changed(model):
            raise RecipeError(f"the model is changed already ({', '.join(_parts_of(model))}); call remove_ first")
        try:
            if self.sites:
                self._forge_(model)
            set_head_(model, self.head)
            set_tta_(model, self.tta)
        except BaseException:
            remove_(model)
            raise

    def _forge_(self, model: nn.Module) -> None:
        places = (Site(name, "recipe", to.layer, to.in_features, (), to.channel_dim) for name, to in self.sites.items())
        for name, forge in insert_(model, places, mask=self.mask).items():
            site, device = self.sites[name], forge.bound.device
            centre, scale, shift = (
                None if values is None else torch.tensor(values, device=device)
                for values in (site.centre, site.scale, site.shift)
            )
            forge.set_bound(torch.tensor(site.bound, device=device), centre)
            forge.set_affine(scale, shift)
            forge.ratio = site.ratio
            forge.calibration = Calibration(self.images_seen, self.data, self.statistic)

    def _check_fit(self, model: nn.Module, strict: bool) -> None:
        modules = dict(unwrap(model).named_modules())
        differences = []
        for name, site in self.sites.items():
            layer = modules.get(name)
            if layer is None:
                differences.append(f"'{name}' does not exist")
            elif not isinstance(layer, LAYERS + ACTIVATIONS) or type(layer).__name__ != site.layer:
                differences.append(f"'{name}' is a {type(layer).__name__}, not a {site.layer}")
            elif (features := in_features(layer)) is not None and features != site.in_features:
                differences.append(f"'{name}' takes {features} features, not {site.in_features}")
        if self.head is not None and (reason := misfit(model, self.head)):
            differences.append(reason)
        if not differences and strict and self.architecture != architecture_digest(model):
            differences.append("all sites fit, but other tensors of the model differ; strict=False applies it anyway")
        if differences:
            raise RecipeError(f"the recipe is for another architecture: {some(differences, '; ')}")


def recipe_of(model: nn.Module) -> Recipe:
    """The recipe of a changed model: its forged functions as they are now, TTA and head."""
    return replace(bare_recipe(model), architecture=architecture_digest(model), weights=weights_digest(model))


def bare_recipe(model: nn.Module) -> Recipe:
    """The recipe of a changed model without the digests of its own tensors, which take a while."""
    found = forges(model) if is_changed(model) else require_forges(model)
    modules = dict(unwrap(model).named_modules())
    first = next(iter(found.values()), Forge())
    for name, forge in found.items():
        if forge.mask != first.mask or forge.calibration != first.calibration:
            raise RecipeError(
                f"a recipe has one mask and one calibration, but site '{name}' has another than "
                f"'{next(iter(found))}'; forge all sites alike, or calibrate_ them together"
            )
    sites = {}
    for name, forge in found.items():
        values = (None if values is None else values.tolist() for values in (forge.centre, forge.scale, forge.shift))
        fixed = type(modules[name]).__name__, forge.channels, forge.channel_dim
        sites[name] = SiteRecipe(*fixed, forge.ratio, forge.bound.tolist(), *values)
    return Recipe(
        first.mask,
        sites,
        **vars(first.calibration),
        architecture="",
        weights="",
        tta=tta_of(model),
        head=head_of(model),
    )


def save_recipe(path: str | Path, model: nn.Module) -> Recipe:
    """Save the recipe of a forged model with its current ratios and bounds, and return it."""
    recipe = recipe_of(model)
    recipe.save(path)
    return recipe


def load_recipe(path: str | Path) -> Recipe:
    """The recipe in a JSON file; damage and unknown formats are errors that name the file."""
    if not Path(path).exists():
        raise RecipeError(
            f"no file {path}; `lipforge forge` writes a recipe, `lipforge improve` only if it finds a gain"
        )
    try:
        fields = read_json(path)
    except InputError as error:
        raise RecipeError(str(error)) from None
    try:
        return recipe_from_dict(fields)
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RecipeError(f"{path} is not a recipe that this version reads: {reason}") from None


def architecture_digest(model: nn.Module) -> str:
    """A digest of the names and shapes of all tensors of `model`; forging does not change it."""
    lines = "\n".join(f"{name} {tuple(tensor.shape)}" for name, tensor in _tensors(model))
    return hashlib.sha256(lines.encode()).hexdigest()


def weights_digest(model: nn.Module) -> str:
    """A digest of the bytes of all tensors of `model`; forging does not change it."""
    digest = hashlib.sha256()
    for name, tensor in _tensors(model):
        digest.update(name.encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def describe_source(images: ImageSource) -> str:
    return images.name if isinstance(images, ImageData) else type(images).__name__


def in_features(layer: nn.Module) -> int | None:
    """How many channels or features a layer takes; None for an activation, which takes any."""
    found = (getattr(layer, attribute, None) for attribute in ("in_channels", "in_features", "embed_dim"))
    return next((value for value in found if isinstance(value, int)), None)


def recipe_from_dict(fields: dict[str, Any]) -> Recipe:
    """The recipe that `Recipe.to_dict` made the fields of, every one checked."""
    if not isinstance(fields, dict):
        raise InputError("it holds no object")
    if type(fields["format"]) is not int or not 1 <= fields["format"] <= FORMAT:
        raise InputError(f"its format is {fields['format']!r}, expected {FORMAT} or an earlier one")
    tta, head = _tta_from(fields.get("tta")), _head_from(fields.get("head"))
    if not isinstance(fields["sites"], dict) or not (fields["sites"] or tta or head):
        raise InputError("it has no sites, and nothing else that changes a model")
    if type(fields["images_seen"]) is not int:
        raise InputError(f"images_seen must be a count, got {fields['images_seen']!r}")
    for name in ("data", "statistic", "architecture", "weights", "lipforge"):
        if not isinstance(fields[name], str):
            raise InputError(f"{name} must be a text, got {fields[name]!r}")
    mask = mask_from_dict(fields["mask"])
    sites = {}
    for name, site in fields["sites"].items():
        try:
            sites[name] = SiteRecipe(**site)
        except (InputError, TypeError) as error:
            raise InputError(f"site '{name}': {error}") from None
        if (sites[name].centre is not None) != (mask.statistic == "moments"):
            raise InputError(f"site '{name}': centre goes with the mask mean_centred and with no other")
    return Recipe(**{**fields, "mask": mask, "sites": sites, "tta": tta, "head": head, "format": FORMAT})


def _tta_from(fields: Any) -> TTA | None:
    if fields is None:
        return None
    return TTA(tuple(Transform(**transform) for transform in fields["transforms"]), fields["mean"])


def _head_from(fields: Any) -> Head | None:
    if fields is None:
        return None
    if not isinstance(fields["layer"], str):
        raise InputError(f"the head's layer must be a name, got {fields['layer']!r}")
    bias = None if fields["bias"] is None else _decoded(fields["bias"])
    return Head(fields["layer"], _decoded(fields["weight"]), bias)


def _encoded(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    raw = value.detach().cpu().float().contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(value.shape), "float32": base64.b64encode(raw).decode()}


def _decoded(fields: Any) -> Tensor:
    shape = fields["shape"]
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise InputError(f"a tensor's shape must be counts, got {shape!r}")
    try:
        raw = base64.b64decode(fields["float32"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise InputError("a tensor must be base64 of float32 numbers") from None
    if len(raw) != 4 * math.prod(shape):
        raise InputError(f"a tensor of {shape} has {math.prod(shape)} numbers, but {len(raw)} bytes are there")
    return torch.from_numpy(np.frombuffer(raw, "<f4").astype("f4")).view(shape)


def _rounded(values: Any) -> Any:
    return None if values is None else torch.tensor(values, dtype=torch.float32).tolist()


def _parts_of(model: nn.Module) -> list[str]:
    found = {f"{len(forges(model))} forged sites": forges(model), "TTA": tta_of(model), "a head": head_of(model)}
    return [name for name, there in found.items() if there]


def _check_values(name: str, values: Any, low: float) -> None:
    if not isinstance(values, list) or not values:
        raise InputError(f"{name} must be a number or a list of numbers, got {values!r}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= FLOAT32_MAX:
            raise InputError(f"{name} must be finite{' and not negative' if low == 0 else ''}, got {value!r}")


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    state = {**unwrap(model).state_dict(), **own_tensors(model)}
    return sorted(state_tensors(state), key=itemgetter(0))
