import os

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from lipforge.batching import ImageData, batches, image_count
from lipforge.data import from_arrays, load_data
from lipforge.data.arrays import read_npz
from lipforge.errors import DataError, InputError

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, size=(10, 3, 6, 8), dtype=np.uint8)
LABELS = np.arange(10) % 4


def test_array_data_is_image_data_and_feeds_batches_in_order():
    data = from_arrays(BYTES, LABELS)
    assert isinstance(data, ImageData)
    assert image_count(data) == 10
    got = list(batches(data, batch_size=4))
    assert torch.equal(torch.cat([batch.images for batch in got]), torch.from_numpy(BYTES) / 255)
    assert torch.cat([batch.labels for batch in got if batch.labels is not None]).tolist() == LABELS.tolist()


def test_array_data_works_as_a_torch_map_style_data_set():
    data = from_arrays(BYTES, LABELS)
    images, labels = next(iter(DataLoader(data, batch_size=10)))
    assert torch.equal(images, data.batch(range(10))[0])
    assert labels.tolist() == LABELS.tolist()


def test_bytes_stay_bytes_in_memory():
    data = from_arrays(BYTES, LABELS)
    assert data.images.dtype == np.uint8
    assert data.batch([1])[0].dtype == torch.float32


def test_changing_a_batch_does_not_change_the_data():
    floats = (BYTES / 255).astype(np.float32)
    data = from_arrays(floats, LABELS)
    data.batch([0])[0].zero_()
    data[0][0].zero_()
    assert torch.equal(data.batch([0])[0][0], torch.from_numpy(BYTES[0]) / 255)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64, ">f4"])
def test_channels_last_gives_the_same_images_as_channels_first(dtype):
    images = BYTES if dtype == np.uint8 else (BYTES / 255).astype(dtype)
    first = from_arrays(images, LABELS).batch([2, 7])[0]
    last = from_arrays(images.transpose(0, 2, 3, 1), LABELS).batch([2, 7])[0]
    assert first.shape == (2, 3, 6, 8)
    assert torch.equal(first, last)
    assert last.is_contiguous()


def test_grey_images_without_a_channel_axis_get_one():
    assert from_arrays(BYTES[:, 0], LABELS)[0][0].shape == (1, 6, 8)


def test_an_unclear_layout_must_be_named():
    images = np.zeros((2, 3, 8, 3), np.uint8)
    with pytest.raises(InputError, match="say where the channels are"):
        from_arrays(images, [0, 1])
    assert from_arrays(images, [0, 1], layout="NHWC")[0][0].shape == (3, 3, 8)


def test_tensors_are_taken_too():
    data = from_arrays(torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2]))
    assert (len(data), data.classes) == (3, 3)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (BYTES, LABELS[:9], "10 images and 9 labels"),
        (BYTES[:0], LABELS[:0], "holds no image"),
        (BYTES.astype(np.float32), LABELS, r"mine: images must lie in \[0, 1\], got .*divide them by 255"),
        (np.full((2, 3, 4, 4), np.nan), [0, 1], r"must lie in \[0, 1\].*nan"),
        (BYTES.astype(np.int64), LABELS, "must be uint8, or floats"),
        (BYTES[0, 0], LABELS, "must have the shape"),
        (BYTES, LABELS.astype(float), "must be whole numbers"),
        (BYTES, LABELS - 1, r"must lie in 0\.\.2, got -1 for image 0 \(3 labels out of range\)"),
    ],
)
def test_wrong_arrays_are_refused_by_name(images, labels, message):
    with pytest.raises(InputError, match=message):
        from_arrays(images, labels, name="mine")


def test_a_label_above_the_class_count_is_refused():
    with pytest.raises(InputError, match=r"labels of mine must lie in 0\.\.2, got 3 for image 3"):
        from_arrays(BYTES, LABELS, name="mine", classes=3)


def test_class_names_must_be_one_per_class():
    with pytest.raises(InputError, match="class_names of arrays must be 4, one per class, got 2"):
        from_arrays(BYTES, LABELS, classes=4, class_names=["a", "b"])


def test_npz_is_read_under_the_usual_names(tmp_path):
    np.savez(tmp_path / "a.npz", x_test=BYTES, y_test=LABELS)
    data = load_data(f"npz:{tmp_path / 'a.npz'}")
    assert torch.equal(data.batch([3])[0], torch.from_numpy(BYTES[[3]]) / 255)


def test_npy_pair_is_memory_mapped_and_equal(tmp_path):
    np.save(tmp_path / "images.npy", BYTES)
    np.save(tmp_path / "labels.npy", LABELS)
    by_folder = load_data(f"npy:{tmp_path}")
    by_pair = load_data(f"npy:{tmp_path / 'images.npy'},{tmp_path / 'labels.npy'}")
    assert torch.equal(by_folder[4][0], torch.from_numpy(BYTES[4]) / 255)
    assert torch.equal(by_folder[4][0], by_pair[4][0])


def test_npz_without_labels_says_what_it_holds(tmp_path):
    np.savez(tmp_path / "a.npz", images=BYTES)
    with pytest.raises(DataError, match="must hold the arrays 'images' and 'labels', it holds images"):
        read_npz(tmp_path / "a.npz")


class Runs:
    """What plain pickle would run."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_an_array_of_python_objects_is_refused_and_not_unpickled(tmp_path):
    objects = np.array([Runs(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "a.npz", images=objects, labels=LABELS)
    with pytest.raises(
        DataError, match=r"a\.npz is not a readable NumPy file .*holds a pickle, and lipforge loads none"
    ):
        read_npz(tmp_path / "a.npz")
    assert not (tmp_path / "ran").exists()


def test_a_truncated_npz_is_reported_by_name(tmp_path):
    np.savez(tmp_path / "a.npz", images=BYTES, labels=LABELS)
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(content[:500])
    with pytest.raises(DataError, match=r"a\.npz is not a readable NumPy file"):
        read_npz(tmp_path / "a.npz")


def test_a_missing_file_is_reported_by_name(tmp_path):
    with pytest.raises(DataError, match=r"no file .*nothing\.npz"):
        read_npz(tmp_path / "nothing.npz")
