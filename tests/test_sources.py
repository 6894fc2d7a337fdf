"""What other tools keep labelled images in, as lipforge reads it: the real packages, made offline."""

import io
import itertools
import tarfile
from typing import Any

import datasets
import numpy as np
import pytest
import torch
import webdataset
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

import lipforge as lf
from lipforge import sources
from lipforge.batching import as_data, batches
from lipforge.errors import DataError, InputError
from lipforge.models.packages import import_package
from lipforge.runs.identity import data_identity
from tests.nets import ResidualNet, seeded

# WebDataset leaves its tar file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file.*images.tar:ResourceWarning")

BYTES = np.random.default_rng(0).integers(0, 256, (10, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(10) % 3
X, Y = torch.from_numpy(BYTES.transpose(0, 3, 1, 2) / np.float32(255)), torch.from_numpy(LABELS)


class Items(Dataset[Any]):
    """A map-style data set of a user's, which counts how often it is read."""

    def __init__(self, *items: Any) -> None:
        self.items, self.reads = items, 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.items[index]


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return zip(X, LABELS.tolist(), strict=True)


def pil(pixels: Any) -> Image.Image:
    return Image.fromarray(pixels)


def hugging_face() -> Any:
    features = datasets.Features(
        {"img": datasets.Image(), "label": datasets.ClassLabel(3), "id": datasets.Value("int32")}
    )
    return datasets.Dataset.from_dict(
        {"img": [pil(each) for each in BYTES], "label": LABELS.tolist(), "id": list(range(10))}, features=features
    )


def shards(folder: Any) -> str:
    """A tar of PNG files and classes, as WebDataset reads them."""
    with tarfile.open(folder / "images.tar", "w") as tar:
        for number, (pixels, label) in enumerate(zip(BYTES, LABELS, strict=True)):
            png = io.BytesIO()
            pil(pixels).save(png, "PNG")
            for name, content in ((f"{number}.png", png.getvalue()), (f"{number}.cls", str(label).encode())):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return str(folder / "images.tar")


def web(folder: Any, decoder: str = "torchrgb") -> Any:
    return webdataset.WebDataset(shards(folder), shardshuffle=False).decode(decoder)


SOURCES = {
    "tensors": lambda folder: (X, Y),
    "floats": lambda folder: (X.numpy(), LABELS),
    "bytes": lambda folder: (BYTES, LABELS),
    "TensorDataset": lambda folder: TensorDataset(X, Y),
    "Dataset": lambda folder: Items(*zip(X, LABELS.tolist(), strict=True)),
    "Dataset of PIL images": lambda folder: Items(*zip(map(pil, BYTES), LABELS.tolist(), strict=True)),
    "Dataset of bytes": lambda folder: Items(*zip(torch.from_numpy(BYTES).permute(0, 3, 1, 2), Y, strict=True)),
    "Subset": lambda folder: Subset(Items(*zip(X.flip(0), Y.flip(0), strict=True)), list(range(9, -1, -1))),
    "DataLoader": lambda folder: DataLoader(TensorDataset(X, Y), batch_size=3, drop_last=True),
    "DataLoader that shuffles": lambda folder: DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True),
    "DataLoader that collates": lambda folder: DataLoader(
        Items(*zip(X, LABELS.tolist(), strict=True)),
        collate_fn=lambda items: {
            "pixel_values": torch.stack([image for image, _ in items]),
            "labels": torch.tensor([label for _, label in items]),
        },
    ),
    "IterableDataset": lambda folder: Stream(),
    "DataLoader of a stream": lambda folder: DataLoader(Stream(), batch_size=4),
    "generator of batches": lambda folder: zip(X.split(4), Y.split(4), strict=True),
    "WebDataset": lambda folder: web(folder).to_tuple("png", "cls"),
    "WebDataset in batches": lambda folder: web(folder).to_tuple("png", "cls").batched(4),
    "WebDataset of dicts": lambda folder: web(folder, "pil"),
    "Hugging Face": lambda folder: hugging_face(),
    "Hugging Face as torch": lambda folder: hugging_face().with_format("torch"),
    "Hugging Face stream": lambda folder: hugging_face().to_iterable_dataset(),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_same_images_in_order(kind, tmp_path):
    data = as_data(SOURCES[kind](tmp_path))
    images, labels = data.batch(range(10))
    assert len(data) == 10
    assert torch.equal(images, X)
    assert torch.equal(labels, Y)
    assert torch.equal(torch.cat([part for part, _ in data.batches(4)]), X)


@pytest.mark.parametrize("kind", ["Dataset", "bytes", "WebDataset", "Hugging Face", "DataLoader that shuffles"])
def test_an_evaluation_resumes_on_it(kind, tmp_path):
    model, threat = seeded(lambda: ResidualNet(width=4)).eval(), lf.Threat("linf", "2/255")
    run = lf.RunDir.open(tmp_path / "run")
    found, again = (
        lf.evaluate(model, SOURCES[kind](tmp_path), lf.FGSM(), threat, run=run, show_progress=False) for _ in range(2)
    )
    expected = lf.evaluate(model, (X, Y), lf.FGSM(), threat, show_progress=False)
    assert found == again  # to the second: it was read back
    assert found.outcome == expected.outcome


def test_another_label_in_the_list_of_a_data_set_makes_another_identity():
    first, second = (Items(*zip(X, LABELS.tolist(), strict=True)) for _ in range(2))
    first.targets, second.targets = LABELS.tolist(), [*LABELS.tolist()[:-1], 2]  # type: ignore[attr-defined]
    assert data_identity(as_data(first)) != data_identity(as_data(second))
    assert data_identity(as_data(Subset(first, [0, 1]))) != data_identity(as_data(Subset(first, [0, 2])))


def test_a_map_style_set_is_read_only_where_it_is_asked_for():
    items = Items(*zip(X, LABELS.tolist(), strict=True))
    data = lf.take(items, 3)
    before = items.reads
    data.batch([2])
    assert before == 2 * len(items) < 2 * sources.READ_TWICE
    assert items.reads == before + 1


@pytest.mark.zoo
def test_a_set_of_torchvision_is_named_by_its_class():
    torchvision = import_package("torchvision")
    fake = torchvision.datasets.FakeData(6, (3, 8, 8), 3, torchvision.transforms.ToTensor())
    data = as_data(fake)
    assert (data.name, len(data)) == ("FakeData", 6)
    assert torch.equal(data.batch([4])[0][0], fake[4][0])


def test_forging_takes_arrays_and_hugging_face_too():
    assert torch.equal(next(iter(batches(BYTES))).images, X)
    assert torch.equal(next(iter(batches((BYTES, LABELS)))).images, X)
    assert torch.equal(next(iter(batches(hugging_face()))).images, X)


class Unsteady(Items):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, 8, 8), 0


MISTAKES = {
    "a tensor": (X, "data must be a data set with labels .*got Tensor"),
    "no labels": (Items(*X), r"item 0 of Items has no label: data must give \(image, label\), got Tensor \(3, 8, 8\)"),
    "labels of text": (Items((X[0], "cat")), "whole number as the label of each image, got str"),
    "one-hot labels": (Items((X[0], torch.eye(3)[0])), r"whole number as the label of each image, got Tensor \(3,\)"),
    "bool labels": (Items((X[0], torch.tensor(True))), r"whole number as the label of each image, got Tensor \(\)"),
    "a list of bools": ([(X[:2], [True, False])], "whole number as the label of each image, got list"),
    "a pair with bools": ((X, Y > 0), r"labels must be integers .*got torch.bool \(10,\) .*pass them as integers"),
    "arrays with bools": ((BYTES, LABELS > 0), r"labels must be integers .*got torch.bool \(10,\)"),
    "no image": (Items(("cat.png", 1)), "must start with an image .*got str"),
    "random": (Unsteady(0, 0), "gives another image when it is asked again"),
    "sizes": (Items((X[0], 0), (X[0, :, 1:], 1)), r"images of different sizes, \[\(3, 7, 8\), \(3, 8, 8\)\]"),
    "empty": (Items(), "it holds no image at all"),
    "empty stream": (iter(()), "it holds no image at all"),
    "splits": (datasets.DatasetDict(test=hugging_face()), "got DatasetDict with the splits test: choose one"),
    "two labels": (
        Items({"image": X[0], "fine": 1, "coarse": 0}),
        r"one image and one label, got image Tensor \(3, 8, 8\), fine int, coarse int; .*from_hugging_face",
    ),
    "a sampler": (
        DataLoader(Items(*zip(X, Y, strict=True)), sampler=SubsetRandomSampler([1, 2])),
        "SubsetRandomSampler of its own, .*Subset",
    ),
    "normalised": (TensorDataset(X * 4 - 2, Y), r"images must lie in \[0, 1\].*inside the model"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    data, message = MISTAKES[mistake]
    with pytest.raises((InputError, DataError), match=message):
        lf.evaluate(seeded(ResidualNet).eval(), data, lf.FGSM(), lf.Threat("linf", 0.1), show_progress=False)


LABELLED: dict[str, Any] = {
    "tensors": lambda y: (X, torch.from_numpy(y)),
    "arrays": lambda y: (BYTES, y),
    "TensorDataset": lambda y: TensorDataset(X, torch.from_numpy(y)),
    "DataLoader": lambda y: DataLoader(TensorDataset(X, torch.from_numpy(y)), batch_size=4),
}


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32"])
@pytest.mark.parametrize("kind", LABELLED)
def test_labels_may_be_integers_of_any_type(kind, dtype):
    data, model = LABELLED[kind](LABELS.astype(dtype)), seeded(ResidualNet).eval()
    attacks = [lf.PGD(steps=1), lf.Square(queries=2)]
    small, wide = (
        [lf.evaluate(model, each, attack, lf.Threat("linf", 0.1), show_progress=False).robust for attack in attacks]
        for each in (data, (X, Y))
    )
    assert small == wide
    assert lf.clean_accuracy(model, data, show_progress=False) == lf.clean_accuracy(model, (X, Y), show_progress=False)
    assert {batch.labels.dtype for batch in batches(data) if batch.labels is not None} == {torch.int64}


def test_an_item_that_cannot_be_read_is_named():
    class Broken(Items):
        def __getitem__(self, index: int) -> Any:
            raise OSError("no such file")

    with pytest.raises(DataError, match="item 0 of Broken cannot be read: OSError: no such file"):
        as_data(Broken(0))


def test_a_stream_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sources, "MOST_BYTES", 5 * X[0].nbytes)
    with pytest.raises(InputError, match="can only be read in order, and it holds more than"):
        as_data(itertools.cycle([(X[0], 0)]))
