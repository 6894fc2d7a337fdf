"""Decode image files ahead of the reader, in worker processes, without ever failing inside one."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lipforge.data.base import Bytes, Ints, chunks
from lipforge.data.decode import Interpolation, UnreadableImage, read_image
from lipforge.data.listing import Listing

MOST_WORKERS = 8


class Prepare(NamedTuple):
    """How each image is prepared: shorter side, centre crop, filter."""

    resize: int | None
    crop: int | None
    interpolation: Interpolation


class Decoded(NamedTuple):
    """One batch: bytes (N, 3, H, W) and labels of the readable images, and (index, reason) of the others."""

    images: Tensor
    labels: Tensor
    failures: list[tuple[int, str]]


def decode_files(
    listing: Listing, prepare: Prepare, indices: Ints, batch_size: int, workers: int | None
) -> Iterator[Decoded]:
    """The images at `indices` in that order, batch by batch; `workers=None` uses the cores there are."""
    batches = _Batches(listing, prepare, chunks(indices, batch_size))
    wanted = min(_cores(), MOST_WORKERS) if workers is None else workers
    if wanted == 0 or len(batches) < 2:
        yield from (batches[at] for at in range(len(batches)))
        return
    yield from DataLoader(
        batches,
        batch_size=None,
        num_workers=min(wanted, len(batches)),
        collate_fn=_as_it_is,
        # Without a generator of its own, a loader draws from torch's global one.
        generator=torch.Generator().manual_seed(0),
    )


class _Batches(Dataset[Decoded]):
    """Item k is batch k, decoded: failures travel as data, because an exception would lose its type on the way."""

    def __init__(self, listing: Listing, prepare: Prepare, parts: list[Ints]) -> None:
        self.listing, self.prepare, self.parts = listing, prepare, parts

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, at: int) -> Decoded:
        images: list[Bytes] = []
        labels: list[int] = []
        failures: list[tuple[int, str]] = []
        for index in self.parts[at].tolist():
            try:
                image = read_image(self.listing.path(index), *self.prepare)
                _check_size(image, images, self.listing, index)
            except UnreadableImage as error:
                failures.append((index, str(error)))
                continue
            images.append(image)
            labels.append(int(self.listing.labels[index]))
        side = self.prepare.crop or 0
        stacked = np.stack(images) if images else np.zeros((0, 3, side, side), np.uint8)
        return Decoded(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.int64), failures)


def _check_size(image: Bytes, others: list[Bytes], listing: Listing, index: int) -> None:
    if others and image.shape != others[0].shape:
        height, width = image.shape[1:]
        raise UnreadableImage(
            f"{listing.path(index)}: has {width}x{height} pixels, others have "
            f"{others[0].shape[2]}x{others[0].shape[1]}; set resize and crop"
        )


def _as_it_is(decoded: Any) -> Any:
    return decoded


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
