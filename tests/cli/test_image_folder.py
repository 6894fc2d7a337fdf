"""An image folder in ImageNet's layout calibrates a Swin-T from the command line."""

from importlib.util import find_spec

import pytest
from PIL import Image

from lipforge.forge import load_recipe
from tests.data.made import photo

pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.filterwarnings("ignore")]  # timm warns about itself


def test_jpegs_calibrate_a_swin_tiny(run, tmp_path):
    if find_spec("timm") is None:  # not imported here: the command does that, in its own way
        pytest.skip("needs timm")
    for number in range(18):
        place = tmp_path / "train" / f"n{number % 6:08}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number, 375, 500)).save(place / f"{number}.JPEG")
    data = ("--data", f"folder:{tmp_path / 'train'}", "--limit", 12, "--batch-size", 6, "--workers", 2)
    ended = run("forge", "timm:swin_tiny_patch4_window7_224", "--no-weights", *data)
    assert ended.code == 0, ended.err
    recipe = load_recipe(tmp_path / "recipe.json")
    assert (len(recipe.sites), recipe.images_seen) == (24, 12)
    assert all(name.endswith((".mlp.fc1", ".mlp.fc2")) for name in recipe.sites)
    assert all(isinstance(bound, float) and bound > 0 for bound in recipe.bounds.values())
