"""MNIST's own file format, IDX: a magic number, the sizes, then bytes."""

import gzip
import math
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from lipforge.data.base import Bytes, Ints
from lipforge.errors import DataError

UNSIGNED_BYTE = 8


def read_pair(files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, 1, H, W) and labels from an images file and a labels file, gzipped or not."""
    (images_name, images_file), (labels_name, labels_file) = files.items()
    images, labels = read_idx(images_file, images_name, axes=3), read_idx(labels_file, labels_name, axes=1)
    if len(images) != len(labels):
        raise DataError(f"{labels_name} has {len(labels)} labels for the {len(images)} images of {images_name}")
    return images[:, None], labels.astype(np.int64)


def read_idx(content: bytes, name: str, *, axes: int) -> Bytes:
    """The byte array with so many axes in an IDX file.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), "labels", axes=1)
    array([7, 9], dtype=uint8)
    """
    content = _unzipped(content, name)
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


def _unzipped(content: bytes, name: str) -> bytes:
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name} is a damaged gzip file ({error}); was it cut short?") from None
