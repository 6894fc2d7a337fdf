import pytest

from lipforge.errors import InputError
from lipforge.models import vit


def test_the_parameter_count_is_the_sum_of_its_parts():
    dim, depth, classes = 192, 12, 10
    block = (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (8 * dim * dim + 5 * dim) + 4 * dim
    embedding = (3 * 16 * dim + dim) + dim + 65 * dim
    expected = embedding + depth * block + 2 * dim + (dim * classes + classes)
    assert sum(parameter.numel() for parameter in vit(dim, depth, 3).parameters()) == expected


def test_patches_must_tile_the_image():
    with pytest.raises(InputError, match="multiple of patch_size"):
        vit(patch_size=5)


def test_heads_must_divide_the_dimension():
    with pytest.raises(InputError, match="multiple of heads"):
        vit(dim=100, heads=3)
