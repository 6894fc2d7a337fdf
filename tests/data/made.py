"""Small files in the published layouts, made for the tests with the tools that made the real ones."""

import hashlib
import http.server
import io
import json
import pickle
import struct
import tarfile
import threading

import numpy as np
from PIL import Image

from lipforge.data.base import Bytes, Ints, content_digest
from lipforge.data.known import KnownSet, Layout

CLASSES = ("ant", "bee", "cow")


def photo(seed, height, width):
    """A smooth random picture (height, width, 3): noise alone would hide what a resize does."""
    coarse = np.random.default_rng(seed).integers(0, 256, size=(5, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def pictures(count, seed):
    """Random images (count, 3, 32, 32) and labels of three classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, size=(count, 3, 32, 32), dtype=np.uint8), np.arange(count, dtype=np.int64) % 3


def batch_file(images, labels, key=b"labels", protocol=2):
    """A batch as the official archive has it: a pickled dict of a byte array and a list."""
    content = {b"data": images.reshape(len(images), -1), key: labels.tolist(), b"batch_label": b"batch 1 of 1"}
    return pickle.dumps(content, protocol=protocol)


def strip_file(images):
    """One PNG row of 1024 pixels per image."""
    buffer = io.BytesIO()
    Image.fromarray(images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)).save(buffer, "PNG")
    return buffer.getvalue()


def idx_file(array):
    """Bytes in MNIST's format."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def tar_file(files):
    """A gzipped tar archive of {name: content}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Toy:
    """A three-class set of 30 + 12 images with the files of both layouts and a `KnownSet` that describes them."""

    train: tuple[Bytes, Ints]
    test: tuple[Bytes, Ints]

    def __init__(self) -> None:
        self.train, self.test = pictures(30, seed=1), pictures(12, seed=2)
        halves = [[array[part] for array in self.train] for part in (slice(0, 15), slice(15, 30))]
        self.batches = {"one": batch_file(*halves[0]), "two": batch_file(*halves[1]), "last": batch_file(*self.test)}
        self.python_archive = tar_file({f"toy-py/{name}": content for name, content in self.batches.items()})
        self.npm_archive = tar_file(
            {
                "package/train.png": strip_file(self.train[0]),
                "package/train.json": json.dumps(self.train[1].tolist()).encode(),
                "package/test.png": strip_file(self.test[0]),
                "package/test.json": json.dumps(self.test[1].tolist()).encode(),
            }
        )
        self.python = Layout(
            format="batches",
            archive="toy-python.tar.gz",
            inside="toy-py",
            folders=("toy-py",),
            files={"train": ("one", "two"), "test": ("last",)},
            md5=md5(self.python_archive),
            size=len(self.python_archive),
            file_md5={name: md5(content) for name, content in self.batches.items()},
        )
        self.npm = Layout(
            format="strips",
            archive="toy-1.0.0.tgz",
            inside="package",
            files={"train": ("train.png", "train.json"), "test": ("test.png", "test.json")},
        )
        self.known = KnownSet(
            name="toy",
            title="Toy",
            class_names=CLASSES,
            counts={"train": 30, "test": 12},
            image=(3, 32, 32),
            layouts=(self.python, self.npm),
            digests={"train": content_digest([self.train]), "test": content_digest([self.test])},
        )


class Server:
    """A real HTTP server on this machine: sends ranges if told to, and cuts the first `cuts` answers short."""

    def __init__(self, content, *, ranges=True, cuts=0):
        self.content, self.ranges, self.cuts, self.asked = content, ranges, cuts, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file"

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if first >= len(self.content):
            request.send_error(416)
            return
        part = self.content[first:]
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        if self.cuts:
            self.cuts -= 1
            part = part[: len(part) // 3]
        request.wfile.write(part)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
