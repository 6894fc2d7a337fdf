"""A small real set inside the package: the first 500 training and the first 500 test images of CIFAR-10."""

import json
from functools import cache
from importlib.resources import files

import numpy as np
from PIL import Image

from lipforge.data.arrays import ArrayData
from lipforge.data.base import content_digest
from lipforge.data.cifar import whole_numbers
from lipforge.data.known import CIFAR10_CLASSES, Split
from lipforge.errors import DataError

COUNT = 500
COLUMNS = 25
DIGESTS: dict[Split, str] = {
    "train": "1e2132f9fb6a8ba1faa246db529e8024f99f6f187e49dbb39a33e4465a16fdd5",
    "test": "3cf4f1dae40946da51d91d2ba53f56d70b0c346767c87550dcfe42060fc9dc6b",
}


@cache
def load_sample(split: Split) -> ArrayData:
    """The first 500 images of a CIFAR-10 split in official order, from a contact sheet of 25 images a row."""
    folder = files("lipforge.data") / "files"
    with (folder / f"cifar10-sample-{split}.png").open("rb") as file, Image.open(file) as sheet:
        pixels = np.asarray(sheet)
    labels = whole_numbers(
        json.loads((folder / "cifar10-sample-labels.json").read_text())[split], "the sample's labels"
    )
    tiles = pixels.reshape(COUNT // COLUMNS, 32, COLUMNS, 32, 3).transpose(0, 2, 4, 1, 3)
    images = np.ascontiguousarray(tiles.reshape(COUNT, 3, 32, 32))
    if content_digest([(images, labels)]) != DIGESTS[split]:
        raise DataError(f"lipforge's own sample of CIFAR-10 ({split}) is damaged; install lipforge again")
    images.setflags(write=False)  # shared by all who ask for it
    return ArrayData(f"cifar10-sample:{split}", images, labels, len(CIFAR10_CLASSES), CIFAR10_CLASSES)
