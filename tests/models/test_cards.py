import hashlib

import pytest
import torch
from safetensors.torch import save_file

from lipforge.errors import InputError, WeightsError
from lipforge.models import resnet
from lipforge.models.cards import bundled_names, load_bundled, read_card
from lipforge.records import write_json


@pytest.fixture(name="shelf")
def _shelf(tmp_path):
    """A directory with one bundled model, made the way the real ones are."""
    torch.manual_seed(3)
    save_file(resnet(8, 2, 5).state_dict(), tmp_path / "tiny.safetensors")
    digest = hashlib.sha256((tmp_path / "tiny.safetensors").read_bytes()).hexdigest()
    card = {"architecture": "resnet8", "arguments": {"width": 2, "classes": 5}, "sha256": digest, "data": "none"}
    write_json(tmp_path / "tiny.json", card)
    return tmp_path


def test_two_files_make_a_bundled_model(shelf):
    torch.manual_seed(3)
    expected = resnet(8, 2, 5)
    assert bundled_names(shelf) == ["tiny"]
    torch.testing.assert_close(load_bundled("tiny", shelf).state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_card_keeps_what_it_says_beyond_the_necessary(shelf):
    assert read_card("tiny", shelf).about == {"data": "none"}


def test_changed_weights_are_refused(shelf):
    path = shelf / "tiny.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"tiny\.safetensors has SHA-256 .* changed or damaged"):
        load_bundled("tiny", shelf)


def test_missing_weights_are_reported_but_not_needed_for_the_architecture(shelf):
    (shelf / "tiny.safetensors").unlink()
    with pytest.raises(WeightsError, match="missing"):
        load_bundled("tiny", shelf)
    assert load_bundled("tiny", shelf, pretrained=False)(torch.zeros(1, 3, 32, 32)).shape == (1, 5)


def test_a_card_without_checksum_is_refused(shelf):
    write_json(shelf / "tiny.json", {"architecture": "resnet8", "arguments": {}})
    with pytest.raises(WeightsError, match=r"tiny\.json lacks 'sha256'"):
        load_bundled("tiny", shelf)


def test_an_unknown_name_gets_the_nearest_one(shelf):
    with pytest.raises(InputError, match="no bundled model 'tinny'; did you mean 'tiny'"):
        load_bundled("tinny", shelf)


def test_every_model_that_ships_loads_and_says_its_number_of_classes():
    for name in bundled_names():
        classes = read_card(name).arguments["classes"]
        assert load_bundled(name).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, classes), name
