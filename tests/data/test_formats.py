import collections
import gzip
import json
import os
import pickle

import numpy as np
import pytest

from lipforge.data import from_arrays, load_data, split
from lipforge.data.formats import read_batches, read_idx, read_pair, read_pickled_batch, read_strips
from lipforge.errors import DataError
from tests.data.made import batch_file, idx_file, pictures, strip_file

IMAGES, LABELS = pictures(10, seed=0)


def test_official_batches_are_joined_in_order():
    files = {"one": batch_file(IMAGES[:4], LABELS[:4]), "two": batch_file(IMAGES[4:], LABELS[4:])}
    images, labels = read_batches(files)
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS.tolist()


def test_fine_labels_are_the_labels_of_cifar_100():
    assert read_batches({"train": batch_file(IMAGES, LABELS, key=b"fine_labels")})[1].tolist() == LABELS.tolist()


def test_the_rows_of_a_strip_are_the_images():
    images, labels = read_strips({"a.png": strip_file(IMAGES[:3]), "b.png": strip_file(IMAGES[3:]),
                                  "labels.json": json.dumps(LABELS.tolist()).encode()})  # fmt: skip
    assert np.array_equal(images, IMAGES)
    assert labels.tolist() == LABELS.tolist()


def test_a_batch_without_labels_says_what_it_holds():
    with pytest.raises(DataError, match="one must hold 'data' and 'labels', it holds data, other, batch_label"):
        read_batches({"one": batch_file(IMAGES, LABELS, key=b"other")})


def test_a_batch_with_too_few_pixels_is_reported():
    with pytest.raises(DataError, match="one must have 3072 bytes per label"):
        read_batches({"one": batch_file(IMAGES[:, :2], LABELS)})


@pytest.mark.parametrize(
    ("labels", "message"),
    [(b"[1, 2]", "2 labels for 10 images"), (b"[1, 2", "not a JSON list"), (b'["a"]', "list of whole numbers")],
)
def test_wrong_labels_beside_a_strip_are_reported(labels, message):
    with pytest.raises(DataError, match=message):
        read_strips({"a.png": strip_file(IMAGES), "labels.json": labels})


def test_a_truncated_strip_is_reported():
    with pytest.raises(DataError, match=r"a\.png is not a readable PNG"):
        read_strips({"a.png": strip_file(IMAGES)[:3000], "labels.json": b"[]"})


DIGITS = np.random.default_rng(0).integers(0, 256, size=(20, 28, 28), dtype=np.uint8)
KINDS = np.arange(20) % 5


def write_four(folder, pack=bytes, suffix=""):
    """The four files of MNIST: 14 training and 6 test images."""
    for part, name in ((slice(0, 14), "train"), (slice(14, 20), "t10k")):
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(pack(idx_file(DIGITS[part])))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx_file(KINDS[part])))
    return folder


@pytest.mark.parametrize(("pack", "suffix"), [(bytes, ""), (gzip.compress, ".gz")])
def test_images_and_labels_are_read_gzipped_or_not(tmp_path, pack, suffix):
    data = load_data(f"idx:{write_four(tmp_path, pack, suffix)}")
    assert (len(data), data.classes, data[0][0].shape) == (6, 5, (1, 28, 28))
    expected = from_arrays(DIGITS[14:], KINDS[14:])
    assert data.batch(range(6))[0].equal(expected.batch(range(6))[0])
    calibration, _, test = split(data, 14, 0)
    assert (len(calibration), len(test)) == (14, 6)


def test_a_wrong_magic_number_is_reported():
    with pytest.raises(DataError, match=r"labels must start with the magic number 00000801.*got 00000803"):
        read_idx(idx_file(DIGITS), "labels", axes=1)


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"x"])
def test_a_wrong_length_is_reported(change):
    with pytest.raises(DataError, match="images must have 15696 bytes"):
        read_idx(change(idx_file(DIGITS)), "images", axes=3)


def test_a_file_that_ends_in_its_header_is_reported():
    with pytest.raises(DataError, match="ends inside its header: 9 of 16 bytes"):
        read_idx(idx_file(DIGITS)[:9], "images", axes=3)


def test_a_truncated_gzip_file_is_reported():
    with pytest.raises(DataError, match="images is not a readable gzip file"):
        read_idx(gzip.compress(idx_file(DIGITS))[:-9], "images", axes=3)


def test_labels_and_images_must_match():
    with pytest.raises(DataError, match="b has 19 labels for the 20 images of a"):
        read_pair({"a": idx_file(DIGITS), "b": idx_file(KINDS[1:])})


def test_a_folder_without_the_files_says_which_it_wants(tmp_path):
    with pytest.raises(DataError, match="must hold t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"):
        load_data(f"idx:{tmp_path}")


ARRAY = np.arange(12, dtype=np.uint8).reshape(3, 4)


@pytest.mark.parametrize("protocol", range(6))
def test_a_real_pickle_of_arrays_is_read_in_every_protocol(protocol):
    batch = read_pickled_batch(pickle.dumps({b"data": ARRAY, b"labels": [1, 2]}, protocol=protocol), "batch")
    assert np.array_equal(batch["data"], ARRAY)
    assert batch["labels"] == [1, 2]


# The same dict as Python 2 and NumPy 1 wrote it in 2009: byte strings as `str`, the module called numpy.core.
PYTHON2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87R"
    b"(K\x01K\x01K\x04\x86cnumpy\ndtype\nq\x05U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    b"\x89U\x04\x00\x01\xfe\xfftbU\x06labels]q\x06K\x07au."
)


def test_a_pickle_of_python_2_is_read():
    batch = read_pickled_batch(PYTHON2, "batch")
    assert batch["data"].tolist() == [[0, 1, 254, 255]]
    assert batch["labels"] == [7]
    assert np.array_equal(pickle.loads(PYTHON2, encoding="bytes")[b"data"], batch["data"])


class Runs:
    """What a hostile pickle does when plain pickle reads it."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, protocol):
    hostile = pickle.dumps({b"data": Runs(tmp_path / "ran"), b"labels": []}, protocol=protocol)
    with pytest.raises(DataError, match=r"batch is refused: its pickle asks for (posix|nt)\.system"):
        read_pickled_batch(hostile, "batch")
    assert not (tmp_path / "ran").exists()
    pickle.loads(hostile)
    assert (tmp_path / "ran").exists(), "the pickle must be able to run, or this test proves nothing"


@pytest.mark.parametrize(
    "name", [b"builtins\neval", b"builtins\ngetattr", b"numpy\nload", b"numpy.core.multiarray\nscalar", b"os\nsystem"]
)
def test_every_other_global_is_refused(name):
    with pytest.raises(DataError, match="is refused"):
        read_pickled_batch(b"\x80\x02c" + name + b"\n.", "batch")


def test_a_pickle_cannot_change_what_the_next_one_is_given():
    poison = b"\x80\x02cnumpy\nndarray\nN}U\x0b__setstate__cnumpy\ndtype\ns\x86b."
    with pytest.raises(DataError):
        read_pickled_batch(poison, "batch")
    assert read_pickled_batch(PYTHON2, "batch")["labels"] == [7]


@pytest.mark.parametrize("length", [0, 1, 40, 100, len(PYTHON2) - 1])
def test_a_truncated_pickle_is_reported(length):
    with pytest.raises(DataError, match="batch is not a readable pickle"):
        read_pickled_batch(PYTHON2[:length], "batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "must hold a dict, it holds a list"),
        ({b"data": np.zeros(2)}, "must hold arrays of bytes, it holds 'f8'"),
        ({b"data": np.zeros((3, 4), np.uint8, order="F")}, "Fortran order"),
        (collections.OrderedDict(), "is refused: its pickle asks for collections"),
    ],
)
def test_a_pickle_of_something_else_is_reported(content, message):
    with pytest.raises(DataError, match=message):
        read_pickled_batch(pickle.dumps(content, protocol=2), "batch")


def test_an_array_with_fewer_bytes_than_its_shape_is_reported():
    with pytest.raises(DataError, match="damaged array"):
        read_pickled_batch(PYTHON2.replace(b"K\x01K\x04\x86", b"K\x01K\x05\x86"), "batch")
