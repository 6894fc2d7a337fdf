import gzip

import numpy as np
import pytest

from lipforge.data import from_arrays, load_data, split
from lipforge.data.idx import read_idx, read_pair
from lipforge.errors import DataError
from tests.data.made import idx_file

IMAGES = np.random.default_rng(0).integers(0, 256, size=(20, 28, 28), dtype=np.uint8)
LABELS = np.arange(20) % 5


def write_four(folder, pack=bytes, suffix=""):
    """The four files of MNIST: 14 training and 6 test images."""
    for part, name in ((slice(0, 14), "train"), (slice(14, 20), "t10k")):
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_file(IMAGES[part])))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_file(LABELS[part])))
    return folder


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_images_and_labels_are_read_gzipped_or_not(tmp_path, pack, suffix):
    data = load_data(f"idx:{write_four(tmp_path, pack, suffix)}")
    assert (len(data), data.classes, data[0][0].shape) == (6, 5, (1, 28, 28))
    expected = from_arrays(IMAGES[14:], LABELS[14:])
    assert data.batch(range(6))[0].equal(expected.batch(range(6))[0])
    calibration, _, test = split(data, 14, 0)
    assert (len(calibration), len(test)) == (14, 6)


def test_a_wrong_magic_number_is_reported():
    with pytest.raises(DataError, match=r"labels must start with the magic number 00000801.*got 00000803"):
        read_idx(idx_file(IMAGES), "labels", axes=1)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x"])
def test_a_wrong_length_is_reported(change):
    with pytest.raises(DataError, match="images must have 15696 bytes"):
        read_idx(change(idx_file(IMAGES)), "images", axes=3)


def test_a_file_that_ends_in_its_header_is_reported():
    with pytest.raises(DataError, match="ends inside its header: 9 of 16 bytes"):
        read_idx(idx_file(IMAGES)[:9], "images", axes=3)


def test_a_truncated_gzip_file_is_reported():
    with pytest.raises(DataError, match="damaged gzip file"):
        read_idx(gzip.compress(idx_file(IMAGES))[:-9], "images", axes=3)


def test_labels_and_images_must_match():
    with pytest.raises(DataError, match="b has 19 labels for the 20 images of a"):
        read_pair({"a": idx_file(IMAGES), "b": idx_file(LABELS[1:])})


def test_a_folder_without_the_files_says_which_it_wants(tmp_path):
    with pytest.raises(DataError, match="must hold t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"):
        load_data(f"idx:{tmp_path}")
