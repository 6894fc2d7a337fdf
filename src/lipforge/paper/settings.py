"""What each table and figure of the paper was measured on (settings.json): models, data, attacks and image counts.

Accuracies are in percent. Those of a model are RobustBench's own at its `eps`: the tables in the README of robustbench
1.1.1, or where these list an attack stronger than AutoAttack, `autoattack_acc` of its model_info. `note` says where the
paper's base differs. What the paper leaves open has the choices of docs/reproducing.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from lipforge.errors import InputError, suggest
from lipforge.records import from_builtins
from lipforge.types import parse_number


@dataclass(frozen=True)
class PaperModel:
    """A model by its name in the tables: how `load_model` names it, and what RobustBench measured."""

    dataset: str
    model: str
    spec: str
    clean: float
    autoattack: float
    eps: str
    note: str = ""


@dataclass(frozen=True)
class PaperData:
    """Test and training images; calibration takes `calibrate` random training images, or all of them."""

    test: str
    training: str
    calibrate: int | None
    files: str | None = None


@dataclass(frozen=True)
class PaperTable:
    """What a table shows; `count` is the number of test images where the paper has fewer than all."""

    title: str
    count: int | None = None


@dataclass(frozen=True)
class Variant:
    """How a row departs from the method: another number of calibration images, or "+ Weight"."""

    calibrate: int | None = None
    fold: bool = False


@dataclass(frozen=True)
class SmoothingSettings:
    sigma: float
    n0: int
    n: int
    alpha: float
    skip: int


@dataclass(frozen=True)
class PaperFigure:
    """What a figure shows: certified curves with `smoothing`, else figures over depth, of singular values with
    `spectra`; `printed` is what the paper's text says of it."""

    title: str
    dataset: str
    models: tuple[str, ...]
    ratio: str
    smoothing: SmoothingSettings | None = None
    spectra: bool = False
    printed: str = ""


@dataclass(frozen=True)
class StandIn:
    """Bundled models and a few images in the place of the paper's: the layout without the numbers. Where a variant
    says how many images to calibrate on, that number is divided by `shrink`."""

    models: Mapping[str, str]
    data: PaperData
    count: int
    shrink: int
    attacks: Mapping[str, str]
    smoothing: SmoothingSettings


@dataclass(frozen=True)
class Settings:
    """All of settings.json; `ratios` are measured where the paper does not state one."""

    models: tuple[PaperModel, ...]
    datasets: Mapping[str, PaperData]
    attacks: Mapping[str, str]
    variants: Mapping[str, Variant]
    ratios: tuple[str, ...]
    frequency: float
    tables: Mapping[str, PaperTable]
    figures: Mapping[str, PaperFigure]
    stand_in: StandIn

    def __post_init__(self) -> None:
        for model in self.models:
            parse_number(model.eps, name="eps")
            if model.dataset not in self.datasets:
                raise InputError(f"settings.json: {model.model} is on {model.dataset}, which has no data")

    def model(self, dataset: str, name: str) -> PaperModel:
        """The model that the tables call `name`."""
        return next(model for model in self.models if (model.dataset, model.model) == (dataset, name))

    def stated_size(self, variant: str) -> int | None:
        """The number of calibration images that a variant states, if it does."""
        return self.variants[variant].calibrate if variant in self.variants else None

    def check(self, table: str) -> None:
        """Raise unless there is a table or a figure of that name."""
        known = [*self.tables, *self.figures]
        if table not in known:
            raise InputError(f"no table or figure {table!r}; there are {', '.join(known)}{suggest(table, known)}")


@cache
def load_settings() -> Settings:
    """The settings of the paper's tables and figures, every field checked.

    >>> load_settings().model("CIFAR-10", "RST-AWP").spec
    'robustbench:cifar10/Linf/Wu2020Adversarial_extra'
    """
    text = resources.files("lipforge.paper").joinpath("settings.json").read_text(encoding="utf-8")
    return from_builtins(Settings, json.loads(text), "settings.json")
