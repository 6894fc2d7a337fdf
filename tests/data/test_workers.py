import numpy as np
import torch

from lipforge.data.listing import list_files
from lipforge.data.workers import Prepare, decode_files

SMALL = Prepare(40, 32, "bicubic")


def test_workers_give_the_same_batches_as_this_process(imagenet_like):
    listing, order = list_files(imagenet_like), np.arange(299, -1, -1)
    alone = list(decode_files(listing, SMALL, order, 64, workers=0))
    helped = list(decode_files(listing, SMALL, order, 64, workers=2))
    assert [len(batch.labels) for batch in alone] == [64, 64, 64, 64, 44]
    assert all(torch.equal(one.images, other.images) for one, other in zip(alone, helped, strict=True))
    assert torch.cat([batch.labels for batch in helped]).tolist() == listing.labels[order].tolist()


def test_reading_leaves_the_global_random_state_alone(imagenet_like):
    before = torch.get_rng_state()
    list(decode_files(list_files(imagenet_like), SMALL, np.arange(64), 32, workers=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_stay_bytes_until_they_arrive(imagenet_like):
    batch = next(decode_files(list_files(imagenet_like), SMALL, np.arange(8), 8, workers=0))
    assert batch.images.dtype == torch.uint8


def test_a_failure_travels_as_data_and_the_others_are_read(imagenet_like, tmp_path):
    for name in ("1", "2", "3"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{name}.JPEG").write_bytes((imagenet_like / "n00" / "img_0000.JPEG").read_bytes())
    (tmp_path / "a" / "2.JPEG").write_bytes(b"not an image")
    batch = next(decode_files(list_files(tmp_path), SMALL, np.arange(3), 3, workers=0))
    assert len(batch.images) == 2
    assert batch.failures[0][0] == 1
    assert "2.JPEG" in batch.failures[0][1]


def test_images_of_different_sizes_are_failures_when_nothing_crops_them(imagenet_like):
    batch = next(decode_files(list_files(imagenet_like), Prepare(None, None, "bicubic"), np.arange(5), 5, workers=0))
    assert len(batch.images) + len(batch.failures) == 5
    assert "set resize and crop" in batch.failures[0][1]
