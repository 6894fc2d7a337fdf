"""Crops and flips against slicing by hand."""

import torch
import torch.nn.functional as F

from lipforge import rng
from lipforge.training.augment import augment

IDS = torch.arange(64)
IMAGES = rng.uniform(0, IDS, stream="images", shape=(3, 6, 5))


def test_every_image_is_a_window_of_the_padded_image_and_every_window_occurs():
    moved = augment(IMAGES, IDS, seed=0, epoch=0, crop=1, flip=False)
    padded = F.pad(IMAGES, (1, 1, 1, 1))
    found = []
    for image, whole in zip(moved, padded, strict=True):
        windows = [
            (row, column)
            for row in range(3)
            for column in range(3)
            if torch.equal(image, whole[:, row : row + 6, column : column + 5])
        ]
        assert len(windows) == 1
        found += windows
    assert len(set(found)) == 9


def test_about_half_of_the_images_are_mirrored_and_the_rest_untouched():
    flipped = augment(IMAGES, IDS, seed=0, epoch=0, crop=0, flip=True)
    mirrored = (flipped == IMAGES.flip(3)).flatten(1).all(dim=1)
    untouched = (flipped == IMAGES).flatten(1).all(dim=1)
    assert torch.equal(mirrored, ~untouched)
    # 64 fair coins: outside 20 .. 44 with probability 0.0015.
    assert 20 <= int(mirrored.sum()) <= 44


def test_the_result_depends_on_the_image_and_the_epoch_and_not_on_the_batch():
    whole = augment(IMAGES, IDS, seed=0, epoch=3, crop=2, flip=True)
    part = augment(IMAGES[10:20], IDS[10:20], seed=0, epoch=3, crop=2, flip=True)
    assert torch.equal(whole[10:20], part)
    assert not torch.equal(whole, augment(IMAGES, IDS, seed=0, epoch=4, crop=2, flip=True))


def test_nothing_happens_when_nothing_is_asked_for():
    assert torch.equal(augment(IMAGES, IDS, seed=0, epoch=0, crop=0, flip=False), IMAGES)
