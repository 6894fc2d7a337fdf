"""Hugging Face `datasets` objects as lipforge data; the package itself is needed only to open a folder it saved."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lipforge.data.base import Bytes, DataSet, Indices, check_indices, reading
from lipforge.data.images import Prepare, to_bytes
from lipforge.errors import DataError, InputError, first_line, missing_extra
from lipforge.sources import unit_range

TEST_NAMES = ("test", "validation", "val")
AS_IT_IS = Prepare()


@dataclass(frozen=True, eq=False)
class HubData(DataSet):
    """The images and labels in two columns of a Hugging Face data set, decoded as they are asked for."""

    name: str
    rows: Any
    image: str
    label: str
    classes: int
    class_names: tuple[str, ...] = ()
    prepare: Prepare = AS_IT_IS
    find_training: Callable[[], DataSet] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        rows = [(index, self._row(index)) for index in check_indices(indices, len(self)).tolist()]
        images = [self._pixels(row[self.image], index) for index, row in rows]
        shapes = {image.shape for image in images}
        if len(shapes) > 1:
            raise DataError(f"{self.name} has images of different sizes, {sorted(shapes)}; give resize and crop")
        labels = torch.tensor([self._label(row[self.label], index) for index, row in rows])
        return unit_range(np.stack(images)) if images else torch.zeros(0, 3, 1, 1), labels.long()

    def describe(self) -> dict[str, Any]:
        fingerprint = getattr(self.rows, "_fingerprint", None)
        return super().describe() | {"fingerprint": fingerprint, "prepared": self.prepare._asdict()}

    def _row(self, index: int) -> Any:
        with reading(f"row {index} of {self.name}", "a readable row"):
            return self.rows[index]

    def _pixels(self, image: Any, index: int) -> Bytes:
        if not isinstance(image, Image.Image):
            raise DataError(
                f"column '{self.image}' of {self.name} must hold images, row {index} holds {type(image).__name__}; "
                f"ds.cast_column('{self.image}', datasets.Image()) decodes files"
            )
        with reading(f"row {index} of {self.name}", "a readable image"):
            if image.mode == "L":
                return np.asarray(self.prepare(image), dtype=np.uint8)[None]
            return to_bytes(self.prepare(image.convert("RGB")))

    def _label(self, label: Any, index: int) -> int:
        if not isinstance(label, int) or not 0 <= label < self.classes:
            raise DataError(f"labels of {self.name} must lie in 0..{self.classes - 1}, row {index} has {label!r}")
        return label


def from_hugging_face(
    ds: Any,
    *,
    image: str | None = None,
    label: str | None = None,
    name: str = "hugging-face",
    prepare: Prepare = AS_IT_IS,
) -> HubData:
    """The data in a Hugging Face `Dataset`, or in the test split of a `DatasetDict`, whose "train" is its training.

    `image` and `label` name the columns where there are several images or class labels.
    """
    if isinstance(ds, dict):
        test = next((split for split in TEST_NAMES if split in ds), None)
        if test is None:
            raise InputError(f"{name} has the splits {', '.join(ds)}, none of {', '.join(TEST_NAMES)}; give ds[split]")
        columns = partial(from_hugging_face, image=image, label=label, prepare=prepare)
        training = partial(columns, ds["train"], name=f"{name}:train") if "train" in ds else None
        return replace(columns(ds[test], name=f"{name}:{test}"), name=name, find_training=training)
    if not hasattr(ds, "features") or not hasattr(ds, "__len__"):
        raise InputError(f"ds must be a datasets.Dataset that is not streamed, got {type(ds).__name__}")
    image = image or _only_column(ds, "Image", "image", name)
    label = label or _only_column(ds, "ClassLabel", "label", name)
    for column in (image, label):
        if column not in ds.features:
            raise InputError(f"{name} has no column '{column}', it has {', '.join(ds.features)}")
    if len(ds) == 0:
        raise DataError(f"{name} is empty")
    names = tuple(getattr(ds.features[label], "names", None) or ())
    return HubData(name, ds, image, label, len(names) or max(ds[label]) + 1, names, prepare)


def open_hub_folder(path: str, prepare: Prepare = AS_IT_IS) -> HubData:
    """The data set that `save_to_disk` left in a folder."""
    try:
        import datasets
    except ImportError:
        raise missing_extra("datasets", "hub") from None
    if not Path(path).is_dir():
        raise DataError(f"no folder {path}; hub:PATH takes what a Hugging Face data set's save_to_disk wrote")
    try:
        ds = datasets.load_from_disk(path)
        for part in ds.values() if isinstance(ds, dict) else [ds]:
            _check_part(part, Path(path))
    except Exception as error:  # datasets raises whatever its damaged JSON leads to
        raise DataError(f"{path} is not a saved Hugging Face data set ({first_line(error)})") from None
    return from_hugging_face(ds, name=f"hub:{path}", prepare=prepare)


def _check_part(part: Any, folder: Path) -> None:
    """Raise if a split is damaged, or would have lipforge read files or addresses outside of its folder."""
    part.data.validate(full=True)  # Arrow would follow damaged offsets out of the file, and crash
    outside = [
        file["filename"]
        for file in part.cache_files
        if not Path(file["filename"]).resolve().is_relative_to(folder.resolve())
    ]
    for name, feature in part.features.items():
        if type(feature).__name__ == "Image" and part.data.column(name).combine_chunks().field("bytes").null_count:
            outside.append(f"the files that column '{name}' names")
    if outside:
        raise DataError(f"it reads {outside[0]}, which is not inside of it")


def _only_column(ds: Any, kind: str, argument: str, name: str) -> str:
    found = [column for column, feature in ds.features.items() if type(feature).__name__ == kind]
    if len(found) != 1:
        raise InputError(
            f"{name} has {len(found)} columns of the type {kind}; say which one by {argument}=, "
            f"it has {', '.join(ds.features)}"
        )
    return str(found[0])
