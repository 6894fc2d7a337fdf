"""CIFAR in its two layouts: the official pickled batches, and one PNG row per image as an npm package has it."""

import io
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from lipforge.data.base import Bytes, Ints
from lipforge.data.unpickle import read_pickled_batch
from lipforge.errors import DataError

PIXELS = 3 * 32 * 32


def read_batches(files: Mapping[str, bytes]) -> tuple[Bytes, Ints]:
    """Images (N, 3, 32, 32) and labels of the official batches, in order; CIFAR-100's labels are the fine ones."""
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
    try:
        labels = whole_numbers(json.loads(files[labels_name]), labels_name)
    except ValueError as error:
        raise DataError(f"{labels_name} is not a JSON list of labels ({error})") from None
    if len(images) != len(labels):
        raise DataError(f"{labels_name} has {len(labels)} labels for {len(images)} images")
    return images, labels


def whole_numbers(values: Any, name: str) -> Ints:
    """A list of ints as an array; anything else is an error that names the list."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise DataError(f"{name} must be a list of whole numbers")
    return np.array(values, dtype=np.int64)


def _read_strip(content: bytes, name: str) -> Bytes:
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            rows = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{name} is not a readable PNG ({error}); was it cut short?") from None
    if rows.ndim != 3 or rows.shape[1:] != (1024, 3):
        raise DataError(f"{name} must have rows of 1024 RGB pixels, got {rows.shape}")
    return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
