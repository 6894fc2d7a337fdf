import json
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from PIL import Image

from lipforge.batching import ImageData, batches
from lipforge.data import FolderOptions, load_data, open_folder, split, take
from lipforge.data.images import robustbench_list
from lipforge.errors import DataError, InputError
from tests.data.made import photo

SMALL = FolderOptions(resize=40, crop=32, workers=0)
UNCHANGED = FolderOptions(resize=None, crop=None, workers=0)


@pytest.fixture
def with_two_bad(imagenet_like, tmp_path):
    """Nine images, of which two cannot be read."""
    for name in ("n00", "n01", "n02"):
        (tmp_path / "nine" / name).mkdir(parents=True)
        for file in sorted((imagenet_like / name).iterdir())[:3]:
            shutil.copy(file, tmp_path / "nine" / name)
    content = (tmp_path / "nine/n00/img_0003.JPEG").read_bytes()
    (tmp_path / "nine/n00/img_0003.JPEG").write_bytes(content[: len(content) // 2])
    (tmp_path / "nine/n02/img_0005.JPEG").write_bytes(b"<html>")
    return tmp_path / "nine"


def test_a_folder_is_image_data_in_224_by_default(imagenet_like):
    data = load_data(f"folder:{imagenet_like}")
    assert isinstance(data, ImageData)
    assert (len(data), data.classes, data.class_names) == (300, 3, ("n00", "n01", "n02"))
    image, label = data[-1]
    assert (image.shape, label) == ((3, 224, 224), 2)


@pytest.mark.zoo
def test_a_folder_equals_torchvisions_image_folder(imagenet_like, torchvision):
    steps = torchvision.transforms
    bicubic = steps.InterpolationMode("bicubic")
    prepare = steps.Compose([steps.Resize(256, interpolation=bicubic), steps.CenterCrop(224), steps.ToTensor()])
    peer = torchvision.datasets.ImageFolder(str(imagenet_like), prepare)
    data = open_folder(imagenet_like)
    assert data.labels.tolist() == peer.targets
    images, labels = data.batch([0, 150, 299])
    assert torch.equal(images, torch.stack([peer[at][0] for at in (0, 150, 299)]))
    assert labels.tolist() == [peer[at][1] for at in (0, 150, 299)]


def test_batches_and_batch_agree(imagenet_like):
    data = open_folder(imagenet_like, FolderOptions(resize=40, crop=32, workers=2))
    streamed = list(batches(data, 128))
    assert [len(batch.images) for batch in streamed] == [128, 128, 44]
    assert torch.equal(streamed[1].images[:5], data.batch(range(128, 133))[0])


def test_a_view_of_a_folder_streams_in_its_own_order(imagenet_like):
    data = open_folder(imagenet_like, FolderOptions(resize=40, crop=32, workers=2))
    part = take(data, 70, seed=3)
    streamed = list(part.batches(32))
    assert torch.equal(torch.cat([images for images, _ in streamed]), data.batch(part.indices)[0])


def test_no_indices_are_no_images(imagenet_like):
    images, labels = open_folder(imagenet_like, SMALL).batch([])
    assert (images.shape, labels.shape) == ((0, 3, 32, 32), (0,))


def test_a_limit_draws_from_every_class(imagenet_like):
    data = load_data(f"folder:{imagenet_like}", limit=60, folder=SMALL)
    assert len(data) == 60
    assert sorted({data[at][1] for at in range(60)}) == [0, 1, 2]
    assert data.describe()["seed"] == 0


def test_describe_is_json_and_tells_how_images_were_prepared(imagenet_like):
    description = json.loads(json.dumps(open_folder(imagenet_like, SMALL).describe()))
    assert description["prepared"] == {"resize": 40, "crop": 32, "by": "bicubic"}
    assert (description["count"], description["seed"], description["skipped"]) == (300, None, [])


def test_val_and_train_make_a_set_with_training_images(imagenet_like, tmp_path):
    shutil.copytree(imagenet_like, tmp_path / "set" / "train")
    for name in ("n00", "n01", "n02"):
        (tmp_path / "set" / "val" / name).mkdir(parents=True)
        Image.fromarray(photo(0, 50, 50)).save(tmp_path / "set" / "val" / name / "only.png")
    calibration, validation, test = split(open_folder(tmp_path / "set", SMALL), 200, 50)
    assert [len(part) for part in (calibration, validation, test)] == [200, 50, 3]
    assert calibration.data.name == f"folder:{tmp_path / 'set' / 'train'}"
    assert torch.equal(test[0][0], test[1][0])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_an_error_that_names_it(with_two_bad, workers):
    data = open_folder(with_two_bad, FolderOptions(resize=40, crop=32, workers=workers))
    with pytest.raises(DataError, match=r"unreadable image .*img_0003\.JPEG: .*on_error=.skip"):
        list(data.batches(4))


def test_unreadable_images_are_skipped_only_if_asked_and_are_named(with_two_bad):
    with pytest.warns(UserWarning, match=r"left out 2 unreadable images .*img_0003\.JPEG.*img_0005\.JPEG"):
        data = open_folder(with_two_bad, FolderOptions(resize=40, crop=32, on_error="skip", workers=0))
    assert len(data) == 7
    assert [name.split("/")[-1] for name in data.skipped] == ["img_0003.JPEG", "img_0005.JPEG"]
    assert sum(len(labels) for _, labels in data.batches(4)) == 7
    assert data.labels.tolist() == [0, 0, 1, 1, 1, 2, 2]


def test_a_folder_of_nothing_but_damage_cannot_be_skipped(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        open_folder(tmp_path, FolderOptions(on_error="skip"))


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        load_data(f"folder:{tmp_path / 'nowhere'}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be at least 1"),
        ({"crop": -3}, "crop must be at least 1"),
        ({"interpolation": "nearest"}, "interpolation must be one of bicubic, bilinear"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"workers": -1}, "workers must not be negative"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FolderOptions(**options)


def test_streaming_takes_no_more_memory_for_six_times_the_images(imagenet_like):
    program = textwrap.dedent(
        """
        import resource, sys
        from lipforge.data import FolderOptions, open_folder
        data = open_folder(sys.argv[1], FolderOptions(resize=None, crop=224, workers=int(sys.argv[2])))
        peaks = []
        for times in (1, 6):
            for _ in range(times):
                for images, labels in data.batches(25):
                    pass
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        print(*peaks)
        """
    )
    command = [sys.executable, "-c", program, str(imagenet_like), "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    once, later = map(int, ran.stdout.split())
    # One batch of 25 floats is 15 MB, the whole folder 181 MB; ru_maxrss counts KiB.
    assert later - once < 15_000


def save_image(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (10, 20, 30)).save(path)


def test_train_and_val_share_one_numbering_of_classes(tmp_path):
    for name in ("train/cat", "train/dog", "train/emu", "val/dog", "val/emu"):
        save_image(tmp_path / name / "1.png")
    data = load_data(f"folder:{tmp_path}", folder=UNCHANGED)
    assert data.training is not None
    assert data.class_names == data.training.class_names == ("cat", "dog", "emu")
    assert [label for _, label in (data[index] for index in range(2))] == [1, 2]


def test_postscript_in_an_image_folder_starts_no_program(tmp_path, monkeypatch):
    save_image(tmp_path / "images/cat/1.png")
    marker, fake = tmp_path / "was-run", tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{shutil.which('touch')} {marker}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    (tmp_path / "images/cat/2.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    data = load_data(f"folder:{tmp_path / 'images'}", folder=UNCHANGED)
    with pytest.raises(DataError, match=r"2\.jpg"):
        data.batch([0, 1])
    assert not marker.exists()


def test_a_file_listed_twice_is_refused(tmp_path):
    save_image(tmp_path / "images/cat/1.png")
    (tmp_path / "list.txt").write_text("cat/1.png\ncat/1.png\n")
    options = FolderOptions(resize=None, crop=None, workers=0, files=str(tmp_path / "list.txt"))
    with pytest.raises(DataError, match=r"lists cat/1\.png more than once"):
        load_data(f"folder:{tmp_path / 'images'}", folder=options)


@pytest.mark.zoo
def test_robustbench_stands_for_its_list_of_imagenet_images(tmp_path):
    listed = robustbench_list().read_text().split()
    assert len(set(listed)) == len(listed) == 5000
    for name in listed:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    save_image(tmp_path / listed[0])
    (tmp_path / listed[0]).with_name("other.JPEG").touch()
    data = load_data(f"folder:{tmp_path}", folder=FolderOptions(resize=None, crop=None, workers=0, files="robustbench"))
    assert len(data) == 5000
    assert data.class_names[data[0][1]] == listed[0].split("/")[0]
