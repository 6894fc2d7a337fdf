"""Every data test gets a cache folder of its own, and no folder of the user's."""

import numpy as np
import pytest
from PIL import Image

from lipforge.errors import MissingExtraError
from lipforge.models.packages import import_package
from tests.data.made import photo


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIPFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LIPFORGE_DATA", raising=False)


@pytest.fixture(scope="session")
def imagenet_like(tmp_path_factory):
    """300 JPEGs in three class folders, sizes as mixed as photographs are."""
    root = tmp_path_factory.mktemp("imagenet")
    sides = np.random.default_rng(0).integers(60, 140, size=(300, 2))
    for number, (width, height) in enumerate(sides):
        folder = root / f"n0{number % 3}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(photo(number, int(height), int(width))).save(folder / f"img_{number:04}.JPEG")
    return root


@pytest.fixture(scope="session")
def torchvision():
    """torchvision as the zoo imports it, for comparisons."""
    try:
        return import_package("torchvision")
    except MissingExtraError as error:
        pytest.skip(str(error))
