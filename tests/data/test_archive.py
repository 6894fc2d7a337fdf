import dataclasses

import pytest

from lipforge.data.archive import find_file, read_archive, read_folder
from lipforge.errors import DataError
from tests.data.made import Toy, tar_file

TOY = Toy()
UNCHECKED = dataclasses.replace(TOY.python, md5="", size=0)


def written(tmp_path, content):
    (tmp_path / "toy.tar.gz").write_bytes(content)
    return tmp_path / "toy.tar.gz"


def test_an_archive_gives_the_files_of_each_split_in_order(tmp_path):
    files = read_archive(written(tmp_path, TOY.python_archive), TOY.python)
    assert list(files["train"]) == ["one", "two"]
    assert files["test"]["last"] == TOY.batches["last"]


def test_a_folder_gives_the_same_files(tmp_path):
    for name, content in TOY.batches.items():
        (tmp_path / name).write_bytes(content)
    assert read_folder(tmp_path, TOY.python) == read_archive(written(tmp_path, TOY.python_archive), TOY.python)


def test_a_truncated_archive_is_reported_with_both_sizes(tmp_path):
    path = written(tmp_path, TOY.python_archive[:-10])
    with pytest.raises(
        DataError, match=f"cut short: {TOY.python.size - 10} bytes, the published file has {TOY.python.size}"
    ):
        read_archive(path, TOY.python)


def test_an_archive_with_a_wrong_checksum_is_refused(tmp_path):
    content = bytearray(TOY.python_archive)
    content[5] ^= 1
    with pytest.raises(DataError, match=r"toy\.tar\.gz has the wrong checksum"):
        read_archive(written(tmp_path, bytes(content)), TOY.python)


@pytest.mark.parametrize("content", [TOY.python_archive[:5000], b"<html>404</html>", b""])
def test_an_unreadable_archive_of_unknown_checksum_is_reported(tmp_path, content):
    with pytest.raises(DataError, match="is not a readable archive"):
        read_archive(written(tmp_path, content), UNCHECKED)


def test_another_archive_is_recognised_as_such(tmp_path):
    with pytest.raises(DataError, match="must hold toy-py/last; is it another archive"):
        read_archive(written(tmp_path, tar_file({"toy-py/one": b""})), UNCHECKED)


def test_a_folder_with_a_changed_file_is_refused(tmp_path):
    for name, content in TOY.batches.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "two").write_bytes(TOY.batches["one"])
    with pytest.raises(DataError, match="two has the wrong checksum"):
        read_folder(tmp_path, TOY.python)


def test_an_incomplete_folder_says_what_it_lacks(tmp_path):
    (tmp_path / "one").write_bytes(TOY.batches["one"])
    with pytest.raises(DataError, match="must hold two; is the set complete"):
        read_folder(tmp_path, TOY.python)


@pytest.mark.parametrize("name", ["a-idx3-ubyte", "a-idx3-ubyte.gz", "a.idx3-ubyte"])
def test_a_file_is_found_under_its_usual_spellings(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert find_file(tmp_path, "a-idx3-ubyte") == tmp_path / name
