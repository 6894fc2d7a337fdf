import pickle
import sys

import pytest
import torch
from torch import nn

from lipforge.errors import InputError, ModelError, WeightsError
from lipforge.models import list_models, load_model, resnet
from lipforge.models.load import build_from_function


@pytest.fixture(name="image")
def _image() -> torch.Tensor:
    return torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(name="file")
def _file(tmp_path):
    torch.manual_seed(9)
    path = tmp_path / "resnet8.pt"
    torch.save({"net": resnet(8, 2, 5).state_dict()}, path)
    return path


def test_an_architecture_takes_its_weights_from_a_file(file, image):
    torch.manual_seed(9)
    expected = resnet(8, 2, 5).eval()
    torch.testing.assert_close(load_model("resnet8:width=2", file, classes=5)(image), expected(image), rtol=0, atol=0)


def test_an_architecture_finds_its_weights_in_a_directory(file, image):
    expected = load_model("resnet8:width=2,classes=5", file)
    found = load_model("resnet8:width=2,classes=5", weights_dir=file.parent)
    torch.testing.assert_close(found(image), expected(image), rtol=0, atol=0)


def test_an_architecture_without_weights_is_not_silently_random(tmp_path):
    with pytest.raises(WeightsError, match=r"resnet20 is an architecture without weights.*--no-weights"):
        load_model("resnet20")
    with pytest.raises(WeightsError, match=f"without weights of its own in {tmp_path}"):
        load_model("resnet20", weights_dir=tmp_path)


def test_random_weights_depend_on_the_seed_and_leave_the_global_generator_alone(image):
    state = torch.get_rng_state()
    first = load_model("resnet8", pretrained=False)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    torch.testing.assert_close(load_model("resnet8", pretrained=False)(image), first(image), rtol=0, atol=0)
    assert not torch.equal(load_model("resnet8", pretrained=False, seed=1)(image), first(image))


def test_the_model_is_in_eval_mode(file):
    assert not any(module.training for module in load_model("resnet8:width=2", file, classes=5).modules())


def test_a_function_of_the_user_gets_the_weights_of_a_file(tmp_path, file, image):
    source = "from lipforge.models import resnet\ndef build():\n    return resnet(8, 2, 5)\n"
    (tmp_path / "mine.py").write_text(source)
    model = load_model(f"{tmp_path / 'mine.py'}:build", file)
    expected = load_model("resnet8:width=2", file, classes=5)
    torch.testing.assert_close(model(image), expected(image), rtol=0, atol=0)


def test_a_hostile_checkpoint_is_refused_and_does_not_run(tmp_path):
    target = tmp_path / "created"
    hostile = f"cposix\nsystem\n(S'touch {target}'\ntR.".encode()
    (tmp_path / "hostile.pt").write_bytes(b"\x80\x02" + hostile)
    with pytest.raises(WeightsError, match=r"refused: .* posix\.system"):
        load_model("resnet8", tmp_path / "hostile.pt")
    assert not target.exists()
    pickle.loads(b"\x80\x02" + hostile)
    assert target.exists()


def test_wrong_class_count_of_a_file_is_explained(file):
    with pytest.raises(WeightsError, match="the checkpoint has 5 classes, the model 10"):
        load_model("resnet8:width=2", file)


def test_contradicting_class_counts_are_refused(file):
    with pytest.raises(InputError, match="contradict"):
        load_model("resnet8:classes=5", file, classes=6)
    with pytest.raises(InputError, match="at least 1"):
        load_model("resnet8", classes=0)


def test_weights_and_no_weights_exclude_each_other(file):
    with pytest.raises(InputError, match="exclude each other"):
        load_model("resnet8", file, pretrained=False)


@pytest.mark.parametrize(
    ("wrong", "right"), [("resnet2O", "resnet20"), ("wrn-28-1O", "wrn-28-10"), ("vit-smal", "vit-small")]
)
def test_an_unknown_name_gets_the_forms_and_the_nearest_names(wrong, right):
    with pytest.raises(InputError, match=rf"robustbench:dataset/threat/name.*did you mean.*'{right}'"):
        load_model(wrong)


def test_an_unknown_name_with_arguments_is_not_taken_for_a_function():
    with pytest.raises(InputError, match="no model 'resnett20:width=3'"):
        load_model("resnett20:width=3")


def test_names_are_listed_by_kind():
    assert list(list_models()) == ["bundled", "architecture"]
    with pytest.raises(InputError, match="no kind of model 'keras'"):
        list_models(["keras"])  # type: ignore[list-item]  # the error is the point


@pytest.mark.zoo
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("robustbench", "robustbench:cifar10/Linf/Zhang2019Theoretically"),
        ("timm", "timm:vit_base_patch16_224"),
        ("torchvision", "torchvision:resnet50"),
    ],
)
def test_the_packages_list_their_names_as_specs(kind, name):
    assert name in list_models([kind])[kind]


def test_a_weights_directory_does_not_apply_to_a_bundled_model(tmp_path):
    with pytest.raises(InputError, match="does not apply to 'cifar10-resnet'"):
        load_model("cifar10-resnet", weights_dir=tmp_path)


def test_a_mean_cannot_be_given_in_a_name():
    with pytest.raises(InputError, match="mean of 'resnet8' cannot be given in a name"):
        load_model("resnet8:mean=0", pretrained=False)


SOURCE = """
from torch import nn
from lipforge.errors import InputError
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

def fails():
    raise RuntimeError("no GPU")

def refuses():
    raise InputError("width must be 4")

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


def test_what_a_function_raises_is_a_model_error_that_names_it(place):
    with pytest.raises(ModelError, match=r"lipforge_test_nets(\.py)?:fails raised RuntimeError: no GPU") as caught:
        build_from_function(f"{place}:fails")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_lipforge_raises_inside_a_function_stays_as_it_is(folder):
    with pytest.raises(InputError, match=r"^width must be 4$"):
        build_from_function("lipforge_test_nets.py:refuses")


def test_missing_and_broken_files_are_told_apart(folder):
    with pytest.raises(InputError, match=r"no file .*nothing\.py"):
        build_from_function("nothing.py:build")
    with pytest.raises(InputError, match=r"cannot import broken\.py: invalid syntax"):
        build_from_function("broken.py:build")
    with pytest.raises(InputError, match=r"cannot import no_such_package.*path/to/file\.py:function"):
        build_from_function("no_such_package.nets:build")


def test_an_empty_name_of_a_weights_file_is_refused():
    with pytest.raises(InputError, match="weights must name a checkpoint file, got an empty text"):
        load_model("resnet20", "")
