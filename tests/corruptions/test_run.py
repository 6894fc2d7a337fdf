import dataclasses
import itertools
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lipforge.corruptions import CORRUPTIONS, corrupt, corrupt_images, corrupted_pair_name
from lipforge.corruptions import run as run_module
from lipforge.corruptions.settings import SEVERITIES
from lipforge.data import FolderOptions, from_arrays, load_data, take
from lipforge.errors import DataError, InputError, RunError
from lipforge.results import CorruptResult, compare_corrupted, from_record, record
from lipforge.results.corruption import ALEXNET_ERRORS, corrupt_fields, mean_corruption_error
from lipforge.runs import RunDir
from lipforge.statistics import clopper_pearson, mean_interval, wilson
from tests.evaluation.toys import labelled, linear

SOME: dict[str, Any] = {"corruptions": ["contrast", "gaussian_noise"], "severities": [1, 5]}


def untimed(result: CorruptResult) -> CorruptResult:
    return dataclasses.replace(result, seconds=0.0)


def test_each_cell_has_the_accuracy_on_the_corrupted_images():
    model = linear(size=16)
    x, y = labelled(model, count=20, size=16)
    found = corrupt(model, (x, y), **SOME, shard_size=7)
    assert (found.corruptions, found.severities) == (("gaussian_noise", "contrast"), (1, 5))
    for cell in found.cells:
        right = model(corrupt_images(x, cell.corruption, cell.severity)).argmax(dim=1) == y
        assert [mark == "1" for mark in cell.right] == right.tolist()
        assert cell.correct == int(right.sum())
        assert cell.interval == wilson(cell.correct, 20)
    assert found.clean_accuracy == 0.8
    assert found.mean_accuracy == pytest.approx(np.mean([cell.accuracy for cell in found.cells]))
    assert found.accuracy_of("contrast")[0] == pytest.approx(np.mean([cell.accuracy for cell in found.cells[2:]]))
    assert found.at(5)[0] == pytest.approx(np.mean([found.cells[1].accuracy, found.cells[3].accuracy]))
    assert found.forwards == 20 * 5
    assert found.mce is None
    assert found.notes == ("images have 16 x 16 pixels; the parameters of CIFAR-10-C are for 32 x 32",)


def test_shards_and_resuming_do_not_change_the_result(tmp_path):
    model = linear(size=8)
    data = labelled(model, count=9, size=8)
    whole = corrupt(model, data, **SOME, shard_size=9)
    with RunDir.open(tmp_path) as run:
        first = corrupt(model, data, **SOME, shard_size=4, run=run)
        (folder,) = (tmp_path / "shards").iterdir()
        (folder / "0001.json").unlink()
        assert untimed(corrupt(model, data, **SOME, shard_size=4, run=run)) == untimed(first) == untimed(whole)
        with pytest.raises(RunError, match="data"):
            corrupt(model, labelled(model, count=8, size=8), **SOME, shard_size=4, run=run)
        corrupt(model, data, corruptions=["fog"], run=run)  # another task


def test_a_result_and_a_comparison_come_back_from_json():
    model = linear(size=8)
    found = corrupt(model, labelled(model, count=5, size=8), **SOME)
    pair = compare_corrupted(found, found)
    assert from_record(record(found), "x") == found
    assert from_record(record(pair), "x") == pair


def made(rows: dict[tuple[str, int], str], clean: str, label: str) -> CorruptResult:
    fields = corrupt_fields(rows, clean, relative_to_alexnet=False)
    return CorruptResult(label=label, model="m", data="d", source="s", seed=0, **fields, forwards=0, seconds=0.0)


def test_two_results_are_compared_image_by_image():
    base = made({("fog", 1): "1100", ("fog", 2): "1000", ("snow", 1): "1110"}, "1110", "base")
    other = made({("fog", 1): "1110", ("fog", 2): "0001", ("snow", 1): "1111"}, "1101", "other")
    found = compare_corrupted(base, other)
    moved = [-1 / 3, 0, 1 / 3, 2 / 3]
    assert found.difference == pytest.approx(np.mean(moved))
    assert found.interval == pytest.approx(mean_interval(moved))
    assert (found.gained, found.lost, found.better, found.worse) == (3, 1, 2, 1)
    assert [(part.gained, part.lost) for part in found.corruptions] == [(2, 1), (1, 0)]
    assert found.corruptions[0].difference == pytest.approx(1 / 8)
    assert (found.clean.gained, found.clean.lost) == (1, 1)
    assert found.relative_error == pytest.approx(((4 / 8) / (5 / 8) + 0) / 2)
    with pytest.raises(InputError, match="same severities"):
        compare_corrupted(base, made({("fog", 1): "1100", ("snow", 1): "1110"}, "1110", "other"))


def test_the_interval_covers_although_an_image_is_in_every_cell():
    """Images differ in how hard they are, so cells of one image go together: the interval over all cells as if they
    were independent would be far too narrow."""
    generator = np.random.default_rng(0)
    covered = narrow = 0
    for _ in range(300):
        gain = generator.normal(0.02, 0.25, size=60)  # of each image; the true mean is 0.02
        moved = (generator.random((60, 75)) < 0.5 + gain[:, None] / 2).astype(float)
        moved -= generator.random((60, 75)) < 0.5 - gain[:, None] / 2
        low, high = mean_interval(moved.mean(axis=1))
        covered += low <= 0.02 <= high
        low, high = mean_interval(moved.ravel())
        narrow += low <= 0.02 <= high
    assert covered / 300 == pytest.approx(0.95, abs=0.03)
    assert narrow / 300 < 0.75


def test_the_interval_is_that_of_a_bootstrap_over_images():
    generator = np.random.default_rng(1)
    hard = generator.random(200)
    words = [
        ["".join("01"[int(v)] for v in generator.random(200) < hard + shift) for _ in range(10)] for shift in (0, 0.1)
    ]
    base, other = (made({("fog", place): word for place, word in enumerate(row)}, row[0], "x") for row in words)
    found = compare_corrupted(base, other)
    marks = [np.array([[int(mark) for mark in word] for word in row]).mean(axis=0) for row in words]
    moved = marks[1] - marks[0]
    means = moved[generator.integers(0, 200, size=(4000, 200))].mean(axis=1)
    assert found.interval == pytest.approx(np.quantile(means, (0.025, 0.975)), abs=0.003)


def test_mce_is_the_published_one_of_a_resnet_50():
    """Top-1 accuracies of torchvision's ResNet-50 on ImageNet-C, and their published corruption errors in percent."""
    published = {
        "brightness": (68.02, 56.64),
        "contrast": (39.06, 71.43),
        "defocus_blur": (38.75, 74.71),
        "elastic_transform": (45.25, 84.75),
        "fog": (45.83, 66.11),
        "frost": (38.14, 74.84),
        "gaussian_noise": (29.29, 79.77),
        "glass_blur": (26.79, 88.61),
        "impulse_noise": (23.81, 82.58),
    }
    for name, (accuracy, expected) in published.items():
        found = mean_corruption_error({name: 1 - accuracy / 100}, ALEXNET_ERRORS)
        assert found is not None
        assert 100 * found == pytest.approx(expected, abs=0.02), name
    assert tuple(ALEXNET_ERRORS) == CORRUPTIONS


def test_equal_images_leave_the_mean_uncertain():
    """All ten images right in every cell: the interval is that of ten of ten."""
    right = {(name, severity): "1" * 10 for name in ("fog", "snow") for severity in (1, 2)}
    found = corrupt_fields(right, "1" * 10, relative_to_alexnet=False)
    assert found["mean_interval"] == pytest.approx(clopper_pearson(10, 10))


def test_a_reference_without_errors_gives_no_mce():
    assert mean_corruption_error({"fog": 0.1}, {"fog": 0.0}) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corruptions": ["fog", "rain"]}, "corruptions must be among gaussian_noise, .* got 'rain'"),
        ({"corruptions": []}, "at least one"),
        ({"corruptions": ["fog", "fog"]}, "each once"),
        ({"corruptions": 3}, r'corruptions must be a list such as \["fog", "snow"\], got 3'),
        ({"corruptions": [3]}, "corruptions must be among gaussian_noise, .* got 3"),
        ({"severities": 1}, r"severities must be a list such as \[1, 3, 5\], got 1"),
        ({"severities": [6]}, "severities must be among 1, 2, 3, 4, 5, got 6"),
        ({"severities": [1, 1]}, "each once"),
        ({"shard_size": 0}, "shard_size must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused(settings, message):
    model = linear(size=8)
    with pytest.raises(InputError, match=message):
        corrupt(model, labelled(model, size=8), **settings)


@pytest.fixture
def cifar_c(tmp_path):
    """Twelve images and their labels, and a folder in the layout of CIFAR-10-C with two corruptions."""
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 256, size=(12, 16, 16, 3), dtype=np.uint8)
    labels = rng.integers(0, 2, size=12).astype(np.uint8)
    x = torch.from_numpy(np.moveaxis(clean, 3, 1)) / 255
    for name in ("contrast", "brightness"):
        steps = [corrupt_images(x, name, severity) for severity in range(1, 6)]
        np.save(tmp_path / f"{name}.npy", np.moveaxis((torch.cat(steps) * 255).round().byte().numpy(), 1, 3))
    np.save(tmp_path / "labels.npy", np.tile(labels, 5))
    return tmp_path, from_arrays(clean, labels, name="clean", classes=2)


def test_cifar_10_c_is_read_severity_by_severity(cifar_c):
    folder, data = cifar_c
    model, names = linear(size=16), ["brightness", "contrast"]
    read = corrupt(model, data, corruptions=names, published=folder, shard_size=5)
    fresh = corrupt(model, data, corruptions=names)
    assert [cell.right for cell in read.cells] == [cell.right for cell in fresh.cells]
    assert len({cell.right for cell in read.cells}) > 1
    assert (read.source, read.notes) == ("files in CIFAR-10-C's layout", ())  # of two classes
    ten = from_arrays(np.moveaxis(data.images, 1, 3), data.labels, classes=10)
    assert corrupt(model, ten, corruptions=names, published=folder).source == "CIFAR-10-C files"
    some = corrupt(model, take(data, 8, seed=1), corruptions=names, published=folder)
    chosen = take(data, 8, seed=1).indices
    assert [cell.right for cell in some.cells] == ["".join(cell.right[at] for at in chosen) for cell in read.cells]


def spoilt(folder, **arrays):
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, y: {"contrast": a[:-1]}, r"one image per label of labels.npy \(60\), got uint8 \(59, 16, 16, 3\)"),
        (lambda a, y: {"contrast": a / np.float32(255)}, "must hold bytes .* got float32"),
        (lambda a, y: {"contrast": a[..., 0]}, r"must hold bytes \(N, H, W, C\)"),
        (lambda a, y: {"contrast": a[::-1].copy()}, "it is in another order"),
        (lambda a, y: {"contrast": a[:, :8, :8]}, "must have images of the data's size, 3 x 16 x 16, got 3 x 8 x 8"),
        (lambda a, y: {"contrast": a.astype(object)}, "contrast.npy is not a readable NumPy file without pickled"),
        (lambda a, y: {"labels": y[:-1]}, "five times the labels of the test set"),
        (lambda a, y: {"labels": np.sort(y)}, "must repeat the same labels for each of the five severities"),
        (lambda a, y: {"labels": 1 - y}, "must have the labels of the data in its order, got [01] for image 0"),
        (lambda a, y: {"labels": y.astype(float)}, "must hold whole numbers"),
        (lambda a, y: {"labels": np.tile(y, 2), "contrast": np.tile(a, (2, 1, 1, 1))}, r"\(24 images\), whole or lim"),
    ],
)
def test_files_that_do_not_fit_are_refused(cifar_c, change, message):
    folder, data = cifar_c
    spoilt(folder, **change(np.load(folder / "contrast.npy"), np.load(folder / "labels.npy")))
    with pytest.raises(DataError, match=message):
        corrupt(linear(size=16), data, corruptions=["contrast"], published=folder)


def test_a_missing_corruption_and_another_folder_are_named(cifar_c, tmp_path):
    folder, data = cifar_c
    with pytest.raises(DataError, match=r"no file .*fog.npy; name only the corruptions that are there"):
        corrupt(linear(size=16), data, corruptions=["fog"], published=folder)
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"neither CIFAR-10-C .* nor ImageNet-C"):
        corrupt(linear(size=16), data, published=empty)
    with pytest.raises(DataError, match="which is no folder"):
        corrupt(linear(size=16), data, published=tmp_path / "nothing")


@pytest.fixture
def imagenet_c(tmp_path):
    """Four clean images in two classes, and fog and contrast at severity 2 of each, as ImageNet-C has them."""
    rng = np.random.default_rng(0)
    for name in ("n01", "n02"):
        for number in range(2):
            image = rng.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
            for folder in ("val", "c/weather/fog/2", "c/contrast/2"):
                path = tmp_path / folder / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(image // (1 if folder == "val" else 2)).save(path)
    return tmp_path / "c", load_data(f"folder:{tmp_path / 'val'}", folder=FolderOptions(None, None))


def test_imagenet_c_is_read_by_file_name(imagenet_c):
    folder, data = imagenet_c
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 2)).eval()
    found = corrupt(model, data, corruptions=["fog", "contrast"], severities=[2], published=folder)
    x, y = data.batch(range(4))
    right = model(torch.floor(x * 255 / 2) / 255).argmax(dim=1) == y
    assert [cell.right for cell in found.cells] == 2 * ["".join(str(int(one)) for one in right)]
    assert (found.source, found.mce) == ("ImageNet-C files", None)  # not all corruptions and severities


def test_a_part_of_imagenet_c_has_no_mce(imagenet_c, monkeypatch):
    """All 75 cells of four images: AlexNet's errors are those of 50,000."""
    folder, data = imagenet_c
    for name, severity in itertools.product(CORRUPTIONS, SEVERITIES):
        if not (folder / name / str(severity)).exists() and name != "fog":
            shutil.copytree(folder / "contrast" / "2", folder / name / str(severity))
    for severity in (1, 3, 4, 5):
        shutil.copytree(folder / "contrast" / "2", folder / "weather" / "fog" / str(severity))
    model = nn.Sequential(nn.Flatten(), nn.Linear(768, 2)).eval()
    assert corrupt(model, data, published=folder).mce is None
    monkeypatch.setattr(run_module, "IMAGENET_IMAGES", 4)
    assert corrupt(model, data, published=folder).mce is not None


def test_comparisons_over_other_severities_have_other_names():
    model, data = linear(size=8), labelled(linear(size=8), size=8)
    found = [corrupt(model, data, corruptions=["contrast"], severities=steps) for steps in ([1], [1, 3])]
    names = {corrupted_pair_name(compare_corrupted(one, one)) for one in found}
    assert len(names) == 2


def test_image_files_that_do_not_fit_are_refused(imagenet_c):
    folder, data = imagenet_c
    settings: dict[str, Any] = {"severities": [2], "published": folder}
    with pytest.raises(DataError, match=r"no file .*fog.1.n01.0.png"):
        corrupt(linear(size=16), data, corruptions=["fog"], severities=[1], published=folder)
    with pytest.raises(DataError, match="no folder snow in"):
        corrupt(linear(size=16), data, corruptions=["snow"], **settings)
    with pytest.raises(DataError, match="data must be an image folder for ImageNet-C"):
        corrupt(linear(size=16), data.batch(range(4)), corruptions=["fog"], **settings)
    Image.new("RGB", (8, 16)).save(folder / "contrast/2/n02/0.png")
    with pytest.raises(DataError, match=r"size of the clean ones, 3 x 16 x 16, got .*n02.0.png"):
        corrupt(linear(size=16), data, corruptions=["contrast"], **settings)
    (folder / "weather/fog/2/n01/1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"unreadable image .*n01.1.png"):
        corrupt(linear(size=16), data, corruptions=["fog"], **settings)
