import json
import shutil

import numpy as np
import pytest

from lipforge.data import FolderOptions, check_data, content_digest
from lipforge.data.sample import DIGESTS
from lipforge.errors import DataError
from lipforge.records import to_json

SMALL = FolderOptions(resize=40, crop=32, workers=0)


def test_the_report_of_the_sample_has_its_pinned_digest():
    report = check_data("cifar10-sample")
    assert (report.count, report.classes, report.image) == (500, 10, (3, 32, 32))
    assert sum(report.histogram) == 500
    assert (report.low, report.high) == (0.0, 1.0)
    assert report.digest == DIGESTS["test"]
    assert json.loads(to_json(report))["class_names"][3] == "cat"


def test_float_arrays_are_reported_as_they_are(tmp_path):
    images = np.linspace(0.25, 0.5, 200 * 12, dtype=np.float32).reshape(200, 3, 2, 2)
    labels = np.arange(200) % 2
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    report = check_data(f"npz:{tmp_path / 'a.npz'}")
    assert (report.low, report.high, report.histogram) == (0.25, 0.5, (100, 100))
    assert report.digest == content_digest([(images, labels)])


def test_unreadable_files_are_named_and_counted_even_when_skipping(imagenet_like, tmp_path):
    shutil.copytree(imagenet_like / "n00", tmp_path / "set" / "n00")
    for name in ("img_0003.JPEG", "img_0009.JPEG"):
        (tmp_path / "set" / "n00" / name).write_bytes(b"")
    options = FolderOptions(resize=40, crop=32, workers=0, on_error="skip")
    report = check_data(f"folder:{tmp_path / 'set'}", folder=options)
    assert (report.count, report.histogram, len(report.unreadable)) == (98, (98,), 2)
    assert "img_0009.JPEG" in report.unreadable[1]


def test_a_folder_is_read_the_same_with_and_without_workers(imagenet_like):
    helped = FolderOptions(resize=40, crop=32, workers=2)
    assert check_data(f"folder:{imagenet_like}", folder=SMALL) == check_data(f"folder:{imagenet_like}", folder=helped)


def test_a_folder_of_damage_has_no_report(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match="none of the 1 images"):
        check_data(f"folder:{tmp_path}")
