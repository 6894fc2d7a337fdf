"""One model of the paper: loaded once, calibrated once, and seen as every setting of a table needs it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from torch import nn

from lipforge.batching import ImageData
from lipforge.data import DataSet, take, view
from lipforge.data.subsets import own_share
from lipforge.errors import DataError, ModelError, RunError
from lipforge.evaluation import clean_accuracy, in_dtype
from lipforge.forge import (
    Recipe,
    ZeroCounts,
    calibrate_,
    count_zeros,
    fold_,
    forge_,
    forged,
    load_fold,
    load_recipe,
    plain,
    remove_,
    set_ratio_,
)
from lipforge.forge.recipe import weights_digest
from lipforge.paper import PaperModel
from lipforge.ranks import is_first
from lipforge.reproduction.plan import Setting, published_clean
from lipforge.reproduction.sources import Source
from lipforge.results import CleanResult
from lipforge.results.reproduction import is_inside
from lipforge.runs import RunDir, slug
from lipforge.statistics import clopper_pearson
from lipforge.text import percent, ratio_text

SURE = 0.999
"""How sure a checkpoint must be the wrong one before it is refused."""


@dataclass(frozen=True)
class Subject:
    """A loaded model with its recipes, by the number of calibration images (None: the whole training set)."""

    paper: PaperModel
    source: Source
    run: RunDir
    model: nn.Module
    test: DataSet
    show_progress: bool | None = None
    recipes: dict[int | None, Recipe] = field(default_factory=dict)

    @classmethod
    def load(
        cls, paper: PaperModel, source: Source, run: RunDir, count: int | None, show_progress: bool | None = None
    ) -> "Subject":
        test = source.test(paper.dataset, count)  # first: a model may have to be downloaded
        return cls(paper, source, run, source.model(paper), test, show_progress)

    @property
    def name(self) -> str:
        """What the run calls the model; a stand-in of several models is measured once."""
        if self.source.stand_in:
            return f"stand-in {self.source.spec(self.paper)}"
        return f"{self.paper.dataset} {self.paper.model}"

    @property
    def title(self) -> str:
        """The paper's name of the model, which a figure must not give to a stand-in."""
        return f"{self.paper.model} (stand-in)" if self.source.stand_in else self.paper.model

    def label(self, setting: Setting) -> str:
        dtype = "" if self.source.dtype == "float32" else f" {self.source.dtype}"
        return f"{self.name} {setting}{dtype}"

    def judged(self, view: nn.Module) -> nn.Module:
        """The view as it is measured: in the source's dtype."""
        return in_dtype(view, self.test.batch([0])[0], self.source.dtype)

    def check_base(self, *, force: bool) -> CleanResult:
        """The base's clean accuracy; an error if it can be neither RobustBench's figure nor one of the paper's."""
        base = self.judged(plain(self.model))
        found = clean_accuracy(base, self.test, label=f"{self.name}, clean", show_progress=self.show_progress)
        known = [self.paper.clean, *published_clean(self.paper)]
        interval = clopper_pearson(found.correct, found.count, SURE)
        if force or self.source.stand_in or any(is_inside(figure / 100, interval) for figure in known):
            return found
        low, high = (percent(bound, 2) for bound in interval)
        raise ModelError(
            f"{self.name} may be the wrong checkpoint: RobustBench has {self.paper.clean:.2f} % clean accuracy for "
            f"{self.paper.spec}, measured are {percent(found.accuracy, 2)} % on {found.count} images ({SURE:.1%} "
            f"interval {low} to {high}); look at the file, or go on with force (--force)"
        )

    def calibrate(self, setting: Setting, others: Iterable[Setting] = ()) -> None:
        """Find the recipe of a setting in the run directory, or in one pass over the training images with those of
        the others that there are enough images for."""
        self._check_size(self._size(setting))
        sizes = {self._size(one) for one in (setting, *others) if one.ratio != 0} - set(self.recipes)
        sizes = {size for size in sizes if size is None or size <= len(self._training)}
        paths = {size: self._file("recipes", str(size or "all"), ".json") for size in sizes}
        if all(path.exists() for path in paths.values()):
            self.recipes.update({size: self._read(path, size) for size, path in paths.items()})
            return
        counts = [size for size in sizes if size is not None]
        # The whole training set has an order of its own: it does not begin with the random images of a smaller count.
        for largest in [*([None] if None in sizes else []), *([max(counts)] if counts else [])]:
            images = self._images(largest)
            limits: dict[int | None, int] = {None: len(images)} if largest is None else {size: size for size in counts}
            found = calibrated(self.model, images, limits, self.show_progress)
            self.recipes.update({size: replace(one, data=self._images(size).name) for size, one in found.items()})
        if is_first():
            for size, path in paths.items():
                self.recipes[size].save(path)

    @contextmanager
    def seen_as(self, setting: Setting) -> Iterator[tuple[nn.Module, str]]:
        """The classifier of a setting, and what to say of it; with "+ Weight" only inside the block."""
        if setting.ratio == 0:
            yield self.judged(plain(self.model)), ""
            return
        remove_(self.model)
        self.recipes[self._size(setting)].apply_(self.model)
        set_ratio_(self.model, setting.ratio)
        if setting.frequency is None:
            yield self.judged(forged(self.model)), ""
            return
        fold = fold_(self.model, self._zeros(setting), frequency=setting.frequency)
        try:
            columns = sum(map(len, fold.columns.values()))
            note = f"{columns} weight columns zeroed at frequency {setting.frequency:g}"
            yield self.judged(plain(self.model)), note
        finally:
            fold.undo_(self.model)

    def _zeros(self, setting: Setting) -> ZeroCounts:
        """How often each input is forged to zero on the calibration images; kept in the run with a fold of them."""
        size = self._size(setting)
        about = f"{ratio_text(setting.ratio)}__{size or 'all'}__{self.recipes[size].digest[:12]}"
        path = self._file("folds", about, ".safetensors")
        if path.exists():
            return load_fold(path).counts
        counts = count_zeros(forged(self.model), self._images(size), show_progress=self.show_progress)
        if is_first():
            fold = fold_(self.model, counts, frequency=setting.frequency or self.source.settings.frequency)
            fold.undo_(self.model)
            fold.save(path)
        return counts

    def _size(self, setting: Setting) -> int | None:
        return self.source.calibration_count(self.paper.dataset, self.source.settings.stated_size(setting.variant))

    @cached_property
    def _training(self) -> DataSet:
        return self.source.training(self.paper.dataset, None)

    def _images(self, size: int | None) -> DataSet:
        return self._training if size is None else take(self._training, size, seed=0)

    def _check_size(self, size: int | None) -> None:
        if size is not None and size > len(self._training):
            raise DataError(
                f"calibration takes {size} images, {self._training.name} has {len(self._training)}; name a larger "
                "training set, or where the table does not say how many take fewer (--calibrate)"
            )

    def _file(self, folder: str, what: str, suffix: str) -> Path:
        return self.run.path / folder / f"{slug(self.name)}__{slug(what)}{suffix}"

    def _read(self, path: Path, size: int | None) -> Recipe:
        recipe = load_recipe(path)
        if recipe.weights != weights_digest(self.model):
            raise RunError(f"{path} was calibrated on other weights of {self.name}; use another run directory")
        images = self._images(size)
        if (recipe.data, recipe.images_seen) != (images.name, len(images)):
            raise RunError(
                f"{path} was calibrated on {recipe.images_seen} images of {recipe.data}, these are {len(images)} of "
                f"{images.name}; use another run directory"
            )
        return recipe


def calibrated(
    model: nn.Module, images: DataSet, sizes: Mapping[int | None, int], show_progress: bool | None
) -> dict[int | None, Recipe]:
    """For each size a recipe from the first so many images, in one pass: a maximum is the largest of its parts'."""
    found: dict[int | None, Recipe] = {}
    before, start = None, 0
    for key, size in sorted(sizes.items(), key=lambda item: item[1]):
        part = own_share(view(images, range(start, size), name=images.name))
        start, before = size, _merged(before, _bounds(model, part, before is None, show_progress))
        found[key] = before
    remove_(model)
    return found


def _bounds(model: nn.Module, images: ImageData, first: bool, show_progress: bool | None) -> Recipe:
    if not first:
        return calibrate_(model, images, data=images.name, show_progress=show_progress)
    remove_(model)
    return forge_(model, images, data=images.name, show_progress=show_progress)


def _merged(before: Recipe | None, after: Recipe) -> Recipe:
    """The recipe of the images of both; with Step's default statistic every site has one bound, its maximum."""
    if before is None:
        return after
    sites = {name: replace(site, bound=max(site.bound, before.sites[name].bound)) for name, site in after.sites.items()}
    return replace(after, sites=sites, images_seen=before.images_seen + after.images_seen)
