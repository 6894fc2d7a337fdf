"""Which models are listed, and what is said of them."""

import pytest

from lipforge.errors import InputError
from lipforge.models import known_models, list_models, load_model, zoos
from lipforge.models.architectures import BUNDLED


def test_all_bundled_models_and_architectures_are_listed():
    names = [name for listed in list_models().values() for name in listed]
    assert [one.name for one in known_models()] == names


def test_a_bundled_model_comes_with_what_its_card_says():
    (found,) = known_models("cifar10-resnet")
    model = load_model("cifar10-resnet")
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.bytes == len((BUNDLED / "cifar10-resnet.safetensors").read_bytes())
    assert (found.source, found.data, found.images, found.classes) == ("bundled", "cifar10", 10000, 10)
    assert (found.clean_accuracy, found.robust_accuracy) == (0.6857, 0.3483)
    assert (found.attack, found.threat) == ("pgd:steps=20,step_size=0.25,restarts=1", "linf 8/255")


@pytest.mark.parametrize("name", list_models(["bundled"])["bundled"])
def test_every_card_has_clean_and_robust_accuracy(name):
    (found,) = known_models(name)
    assert None not in vars(found).values()
    assert 0 <= (found.robust_accuracy or 0) < (found.clean_accuracy or 0) < 1


def test_a_glob_filters_whatever_the_case():
    assert [one.name for one in known_models("WRN*")] == ["wrn-28-10", "wrn-34-10"]
    with pytest.raises(InputError, match="no model matches 'x\\*'"):
        known_models("x*")


@pytest.mark.zoo
def test_the_models_of_a_zoo_are_listed_by_its_name():
    names = [one.name for one in known_models("torchvision:resnet1*")]
    assert names == ["torchvision:resnet101", "torchvision:resnet152", "torchvision:resnet18"]


@pytest.mark.zoo
def test_zoos_that_are_installed_have_a_version():
    assert [zoo.name for zoo in zoos()] == ["robustbench", "timm", "torchvision"]
    assert all(zoo.version for zoo in zoos())


def test_a_zoo_that_is_not_installed_has_none(monkeypatch):
    monkeypatch.setattr("lipforge.models.catalogue.ZOOS", ("no-such-zoo",))
    (zoo,) = zoos()
    assert (zoo.version, zoo.install) == (None, "pip install 'lipforge[zoo]'")
