"""The file formats of published sets: CIFAR's pickled batches, PNGs of one image per row, and MNIST's IDX."""

import gzip
import io
import json
import math
import pickle
import struct
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from PIL import Image

from lipforge.data.base import Bytes, Ints, reading
from lipforge.errors import DataError
from lipforge.records import most_unpacked

Format = Literal["batches", "strips", "idx"]
PIXELS = 3 * 32 * 32
UNSIGNED_BYTE = 8


def decode(kind: Format, files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, C, H, W) and labels in the files of one split."""
    return {"batches": read_batches, "strips": read_strips, "idx": read_pair}[kind](files)


def read_batches(files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, 3, 32, 32) and labels of CIFAR's official batches, in order; CIFAR-100's labels are the fine ones."""
    images: list[Bytes] = []
    labels: list[Any] = []
    for name, content in files.items():
        batch = read_pickled_batch(content, name)
        targets = batch.get("fine_labels", batch.get("labels"))
        data = batch.get("data")
        if not isinstance(data, np.ndarray) or not isinstance(targets, list):
            raise DataError(f"{name} must hold 'data' and 'labels', it holds {', '.join(batch)}")
        if data.shape != (len(targets), PIXELS):
            raise DataError(f"{name} must have {PIXELS} bytes per label, got {data.shape} for {len(targets)} labels")
        images.append(data.reshape(-1, 3, 32, 32))
        labels += targets
    return np.concatenate(images), whole_numbers(labels, "labels of the batches")


def read_strips(files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, 3, 32, 32) and labels from PNGs of 1024 pixels a row, one image per row, and one JSON list."""
    *pictures, labels_name = files
    images = np.concatenate([_read_strip(files[name], name) for name in pictures])
    with reading(labels_name, "a JSON list of labels"):
        labels = whole_numbers(json.loads(files[labels_name]), labels_name)
    if len(images) != len(labels):
        raise DataError(f"{labels_name} has {len(labels)} labels for {len(images)} images")
    return images, labels


def read_pair(files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, 1, H, W) and labels from an IDX file of each, gzipped or not."""
    (images_name, images_file), (labels_name, labels_file) = files.items()
    images, labels = read_idx(images_file, images_name, axes=3), read_idx(labels_file, labels_name, axes=1)
    if len(images) != len(labels):
        raise DataError(f"{labels_name} has {len(labels)} labels for the {len(images)} images of {images_name}")
    return images[:, None], labels.astype(np.int64)


def read_idx(content: bytes, name: str, *, axes: int) -> Bytes:
    """The byte array with so many axes in an IDX file: a magic number, the sizes, then bytes.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", axes=1)
    array([7, 9], dtype=uint8)
    """
    if content[:2] == b"\x1f\x8b":
        with reading(name, "a readable gzip file"):
            content = _unpacked(content, name)
    header = 4 + 4 * axes
    if content[:4] != bytes([0, 0, UNSIGNED_BYTE, axes]):
        raise DataError(
            f"{name} must start with the magic number 0000080{axes} (IDX, bytes, {axes} axes), got {content[:4].hex()}"
        )
    if len(content) < header:
        raise DataError(f"{name} ends inside its header: {len(content)} of {header} bytes")
    shape = struct.unpack(f">{axes}I", content[4:header])
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{name} must have {header + math.prod(shape)} bytes for {shape}, got {len(content)}; was it cut short?"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _unpacked(content: bytes, name: str) -> bytes:
    limit = most_unpacked(len(content))
    with gzip.open(io.BytesIO(content)) as file:
        unpacked = file.read(limit + 1)
    if len(unpacked) > limit:
        raise DataError(f"{name} unpacks to more than {limit >> 20} MB; if it should, unpack it yourself")
    return unpacked


def read_pickled_batch(content: bytes, name: str) -> dict[str, Any]:
    """The dict in a pickle of plain values and byte arrays; one that would import or call anything is refused."""
    try:
        batch = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{name} {error}") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"{name} is not a readable pickle ({reason}); was it cut short?") from None
    if not isinstance(batch, dict):
        raise DataError(f"{name} must hold a dict, it holds a {type(batch).__name__}")
    return {_text(key): _array(value, name) if hasattr(value, "raw") else value for key, value in batch.items()}


def whole_numbers(values: Any, name: str) -> Ints:
    """A list of ints as an array; anything else is an error that names the list."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{name} must be a list of whole numbers")
    return np.array(values, dtype=np.int64)


def _read_strip(content: bytes, name: str) -> Bytes:
    with reading(name, "a readable PNG"), Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
        rows = np.asarray(picture)
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3):
        raise DataError(f"{name} must have rows of 1024 RGB pixels, got {rows.shape}")
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # NumPy 2 renamed numpy.core; pickles exist under both names.
        known = _replacements().get((module.replace("numpy.core", "numpy._core"), name))
        if known is None:
            raise DataError(f"is refused: its pickle asks for {module}.{name}, which no image archive needs")
        return known


def _replacements() -> dict[tuple[str, str], Any]:
    """Harmless namesakes of what a pickled uint8 array refers to, made anew, as a pickle may set attributes on them."""

    class Kind:
        def __init__(self, code: Any = "", *_: Any) -> None:
            self.code = _text(code)

        def __setstate__(self, _: Any) -> None: ...

    class Array:
        raw: Any = b""
        shape: Any = ()
        kind: Any = None

        def __setstate__(self, state: Any) -> None:
            _, self.shape, self.kind, fortran, self.raw = state
            if fortran:
                raise DataError("holds an array in Fortran order")

    def from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> Array:
        array = Array()
        array.__setstate__((1, shape, kind, order == "F", raw))
        return array

    return {
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
        ("numpy._core.numeric", "_frombuffer"): from_buffer,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Kind,
        ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
    }


def _array(found: Any, name: str) -> Bytes:
    kind = getattr(found.kind, "code", None)
    if kind not in ("u1", "uint8"):
        raise DataError(f"{name} must hold arrays of bytes, it holds '{kind}'")
    try:
        return np.frombuffer(found.raw, np.uint8).reshape(found.shape)
    except (TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{name} holds a damaged array ({error})") from None


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
