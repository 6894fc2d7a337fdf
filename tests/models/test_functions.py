import pickle
import sys

import pytest
import torch
from torch import nn

from lipforge.errors import InputError, ModelError
from lipforge.models.functions import build_from_function

SOURCE = """
from torch import nn
from lipforge_test_neighbour import OUT

class Net(nn.Linear):
    def __init__(self, classes=OUT):
        super().__init__(4, classes)

def build():
    return Net()

def build_many(num_classes):
    return Net(num_classes)

def needs(width):
    return Net(width)

def wrong():
    return "a model"

NUMBER = 3
"""


@pytest.fixture(name="folder")
def _folder(tmp_path, monkeypatch):
    (tmp_path / "lipforge_test_nets.py").write_text(SOURCE)
    (tmp_path / "lipforge_test_neighbour.py").write_text("OUT = 6\n")
    (tmp_path / "broken.py").write_text("def build(:\n")
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if "lipforge_test" in name or "lipforge_file" in name:
            del sys.modules[name]


@pytest.fixture(name="place", params=["file", "relative file", "module"])
def _place(request, folder):
    places = {"file": folder / "lipforge_test_nets.py", "relative file": "./lipforge_test_nets.py"}
    return str(places.get(request.param, "lipforge_test_nets"))


def test_a_function_is_called_and_may_import_its_neighbours(place):
    path = list(sys.path)
    model = build_from_function(f"{place}:build")
    assert model(torch.zeros(1, 4)).shape == (1, 6)
    assert sys.path == path


def test_a_class_serves_as_a_function(place):
    assert isinstance(build_from_function(f"{place}:Net"), nn.Linear)


@pytest.mark.parametrize("function", ["Net", "build_many"])
def test_classes_are_handed_on_under_either_name(folder, function):
    model = build_from_function(f"lipforge_test_nets.py:{function}", classes=9)
    assert model(torch.zeros(1, 4)).shape == (1, 9)


def test_classes_that_nobody_takes_are_an_error(folder):
    with pytest.raises(InputError, match="classes=9 was asked for"):
        build_from_function("lipforge_test_nets.py:build", classes=9)


def test_a_model_from_a_file_can_be_pickled(folder):
    model = build_from_function("lipforge_test_nets.py:build")
    copy = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(copy.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_a_missing_function_gets_the_nearest_one(folder):
    with pytest.raises(InputError, match="no function 'buid'; did you mean 'build'"):
        build_from_function("lipforge_test_nets.py:buid")


def test_something_that_cannot_be_called_is_no_function(folder):
    with pytest.raises(InputError, match="no function 'NUMBER'"):
        build_from_function("lipforge_test_nets.py:NUMBER")


def test_a_function_that_needs_arguments_is_an_error(folder):
    with pytest.raises(InputError, match=r"must work without arguments.*'width'"):
        build_from_function("lipforge_test_nets.py:needs")


def test_a_function_must_return_a_module(folder):
    with pytest.raises(ModelError, match=r"must return a torch\.nn\.Module, got str"):
        build_from_function("lipforge_test_nets.py:wrong")


def test_missing_and_broken_files_are_told_apart(folder):
    with pytest.raises(InputError, match=r"no file .*nothing\.py"):
        build_from_function("nothing.py:build")
    with pytest.raises(InputError, match=r"cannot import broken\.py: invalid syntax"):
        build_from_function("broken.py:build")
    with pytest.raises(InputError, match=r"cannot import no_such_package.*path/to/file\.py:function"):
        build_from_function("no_such_package.nets:build")
