"""Where models, images and attacks come from: the paper's, or bundled ones that stand in for them."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from lipforge.attacks import Attack, parse_attack
from lipforge.data import DataSet, FolderOptions, load_data, take
from lipforge.errors import DataError, InputError, WeightsError
from lipforge.evaluation.dtypes import check_dtype
from lipforge.models import load_model
from lipforge.paper import PaperModel, Settings, load_settings
from lipforge.paper.settings import PaperData, SmoothingSettings


@dataclass(frozen=True)
class Source:
    """What the user has: checkpoints in `weights_dir`, ImageNet's train/ and val/ in `imagenet`, published data files
    in `root`, a `device`. `limit` keeps the first test images only, and `calibrate` takes the place of the paper's
    number of calibration images. `stand_in` takes bundled models and 4 test images, or `limit`, instead of all
    that. The models of tables are judged in `dtype`, and calibrated in float32. `settings` say what the paper measured
    on what."""

    weights_dir: str | None = None
    imagenet: str | None = None
    root: str | None = None
    limit: int | None = None
    calibrate: int | None = None
    stand_in: bool = False
    device: torch.device | None = None
    dtype: str = "float32"
    settings: Settings = field(default_factory=load_settings, repr=False)

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        for name, value in (("limit", self.limit), ("calibrate", self.calibrate)):
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        for name, folder in (("weights_dir", self.weights_dir), ("imagenet", self.imagenet)):
            if folder is not None and not self.stand_in and not Path(folder).is_dir():
                raise InputError(f"{name} must be a folder, got {folder}")

    @property
    def smoothing(self) -> SmoothingSettings | None:
        """Other settings than a figure's."""
        return self.settings.stand_in.smoothing if self.stand_in else None

    def spec(self, paper: PaperModel) -> str:
        return self.settings.stand_in.models[paper.dataset] if self.stand_in else paper.spec

    def model(self, paper: PaperModel) -> nn.Module:
        try:
            model = load_model(self.spec(paper), weights_dir=None if self.stand_in else self.weights_dir)
        except InputError as error:  # a robustbench of another version
            raise WeightsError(f"{error}; pip install 'lipforge[zoo]' brings the version that has it") from None
        return model if self.device is None else model.to(self.device)

    def test(self, dataset: str, count: int | None = None) -> DataSet:
        """The test images of a data set: the first `count`, or all."""
        limit = self.settings.stand_in.count if self.stand_in and self.limit is None else self.limit
        counts = [number for number in (count, limit) if number is not None]
        about = self._data(dataset)
        data = self._open(about, about.test, about.files)
        return take(data, min(counts)) if counts and min(counts) < len(data) else data

    def calibration_count(self, dataset: str, count: int | None) -> int | None:
        """How many images to calibrate on where a variant asks for `count`; None for the whole training set."""
        if count is not None and self.stand_in:
            return -(-count // self.settings.stand_in.shrink)
        return count or self.calibrate or self._data(dataset).calibrate

    def training(self, dataset: str, count: int | None) -> DataSet:
        """`count` random training images, which begin with those of any smaller count, or all of them."""
        about = self._data(dataset)
        data = self._open(about, about.training)
        return data if count is None else take(data, count, seed=0)

    def attack(self, name: str) -> Attack:
        """The attack that a table calls by that name."""
        attacks = self.settings.stand_in.attacks if self.stand_in else self.settings.attacks
        return parse_attack(attacks[name])

    def _data(self, dataset: str) -> PaperData:
        return self.settings.stand_in.data if self.stand_in else self.settings.datasets[dataset]

    def _open(self, about: PaperData, spec: str, files: str | None = None) -> DataSet:
        if "{imagenet}" in spec and self.imagenet is None:
            raise DataError("ImageNet is read from your own folder with train/ and val/; name it (--imagenet)")
        options = FolderOptions(files=files) if spec.startswith("folder:") else None
        return load_data(spec.format(imagenet=self.imagenet), root=self.root, folder=options)
