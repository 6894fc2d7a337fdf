import multiprocessing
import time
from pathlib import Path

import numpy as np
import pytest

from lipforge.data.cache import cache_folder, cached_path, checked_digest, lock, read_cached, write_cached
from lipforge.errors import DataError
from tests.data.made import Toy

TOY = Toy()


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
        checked_digest(TOY.known, "test", images, labels, "there")


def hold(order, name, seconds):
    with lock("toy"):
        order.put(f"{name} in")
        time.sleep(seconds)
        order.put(f"{name} out")


def test_two_processes_take_turns():
    context = multiprocessing.get_context("fork")
    order = context.Queue()
    processes = [context.Process(target=hold, args=(order, name, 0.3)) for name in ("a", "b")]
    for process in processes:
        process.start()
    seen = [order.get(timeout=20) for _ in range(4)]
    for process in processes:
        process.join()
    assert [entry.split()[1] for entry in seen] == ["in", "out", "in", "out"]
    assert seen[0][0] == seen[1][0]
