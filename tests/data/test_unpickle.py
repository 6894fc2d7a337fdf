import collections
import os
import pickle

import numpy as np
import pytest

from lipforge.data.unpickle import read_pickled_batch
from lipforge.errors import DataError

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
