import copy
import gzip
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lipforge.errors import WeightsError
from lipforge.models import load_weights_, resnet
from lipforge.models.packages import normalized
from lipforge.models.weights import find_weights, read_checkpoint, state_dicts


@pytest.fixture(name="source")
def _source() -> nn.Module:
    torch.manual_seed(1)
    return resnet(8, 2, 5).eval()


@pytest.fixture(name="target")
def _target() -> nn.Module:
    torch.manual_seed(2)
    return resnet(8, 2, 5).eval()


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "weights.pt"


def assert_same(left: nn.Module, right: nn.Module) -> None:
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(left(images), right(images), rtol=0, atol=0)


def renamed(model: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in model.state_dict().items()}


LAYOUTS = {
    "plain": lambda model: model.state_dict(),
    "state_dict": lambda model: {"state_dict": model.state_dict(), "epoch": 7},
    "model": lambda model: {"model": model.state_dict(), "optimizer": {"state": {0: torch.ones(1)}}},
    "net": lambda model: {"net": model.state_dict(), "acc": 0.9},
    "ema": lambda model: {"ema": model.state_dict()},
    "nested": lambda model: {"checkpoint": {"model_state_dict": model.state_dict()}},
    "beside a number": lambda model: {**model.state_dict(), "epoch": 7},
    "module.": lambda model: nn.DataParallel(model).state_dict(),
    "_orig_mod.": lambda model: renamed(model, "_orig_mod."),
    "averaged": lambda model: AveragedModel(model).state_dict(),
    "model.": lambda model: renamed(model, "model."),
    "all at once": lambda model: {"ema": {"state_dict": renamed(model, "module._orig_mod.model.")}},
    "old batch norm": lambda model: {k: v for k, v in model.state_dict().items() if "num_batches" not in k},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_common_layouts_are_unwrapped(source, target, path, layout):
    torch.save(LAYOUTS[layout](source), path)
    load_weights_(target, path)
    assert_same(target, source)


def test_safetensors_are_loaded(source, target, path):
    save_file(source.state_dict(), path)
    load_weights_(target, path)
    assert_same(target, source)


def test_the_model_may_be_wrapped_instead_of_the_checkpoint(source, target, path):
    torch.save(source.state_dict(), path)
    load_weights_(normalized(target, [0.0] * 3, [1.0] * 3), path)
    assert_same(target, source)


def test_prefixes_that_would_make_names_collide_are_left_alone(path):
    source, target = (nn.ModuleDict({"model": nn.Linear(2, 2), "module": nn.Linear(2, 2)}) for _ in range(2))
    torch.save(source.state_dict(), path)
    load_weights_(target, path)
    torch.testing.assert_close(target.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_other_weights_are_refused_with_counts_and_examples_and_nothing_changes(source, target, path):
    state = source.state_dict()
    state["stem.weight"] = state.pop("conv1.weight")
    torch.save(state, path)
    before = copy.deepcopy(target)
    with pytest.raises(WeightsError, match=r"1 missing \(conv1\.weight\), 1 unexpected \(stem\.weight\)"):
        load_weights_(target, path)
    assert_same(target, before)


def test_long_lists_of_names_are_cut(target, path):
    torch.save({f"layer{number}": torch.ones(1) for number in range(9)}, path)
    with pytest.raises(WeightsError, match=r"9 unexpected \(layer0, layer1, layer2, \.\.\.\)"):
        load_weights_(target, path)


def test_another_number_of_classes_is_recognised(target, path):
    torch.save(resnet(8, 2, 100).state_dict(), path)
    with pytest.raises(WeightsError, match=r"file 100x8, model 5x8.* has 100 classes, the model 5: .*classes=100"):
        load_weights_(target, path)


def test_another_width_is_not_mistaken_for_another_number_of_classes(target, path):
    torch.save(resnet(8, 3, 5).state_dict(), path)
    with pytest.raises(WeightsError, match=r"of another shape \(conv1\.weight: file 3x3x3x3, model 2x3x3x3") as caught:
        load_weights_(target, path)
    assert "classes" not in str(caught.value)


def test_two_different_weights_that_fit_must_be_told_apart_by_the_user(source, target, path):
    torch.save({"model": target.state_dict(), "ema": source.state_dict()}, path)
    with pytest.raises(WeightsError, match=r"different weights that fit: model, ema; name one: .*weights\.pt#ema"):
        load_weights_(target, path)
    load_weights_(target, f"{path}#ema")
    assert_same(target, source)


def test_the_same_weights_twice_are_no_question(source, target, path):
    torch.save({"model": source.state_dict(), "best": copy.deepcopy(source.state_dict())}, path)
    load_weights_(target, path)
    assert_same(target, source)


def test_a_key_that_is_not_there_is_reported(source, target, path):
    torch.save({"model": source.state_dict()}, path)
    with pytest.raises(WeightsError, match="no state dict under 'ema'"):
        load_weights_(target, f"{path}#ema")


def test_a_file_without_tensors_is_reported(target, path):
    torch.save({"epoch": 3}, path)
    with pytest.raises(WeightsError, match="holds no state dict"):
        load_weights_(target, path)


class Shifted(nn.Module):
    mu: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("mu", torch.full((3, 1, 1), 0.5))
        self.std = nn.Parameter(torch.ones(1))


def test_normalisation_constants_may_be_missing_from_the_file_and_stay(path):
    torch.save({"std": torch.zeros(1)}, path)
    model = Shifted()
    load_weights_(model, path)
    assert model.mu.flatten().tolist() == [0.5, 0.5, 0.5]


def test_a_parameter_may_not_be_missing_even_if_it_is_called_std(path):
    torch.save({"mu": torch.zeros(3, 1, 1)}, path)
    with pytest.raises(WeightsError, match=r"1 missing \(std\)"):
        load_weights_(Shifted(), path)


def test_weights_are_found_in_the_order_of_their_names(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "flat.pt").touch()
    (tmp_path / "deep" / "own.pt").touch()
    assert find_weights(tmp_path, ["none.pt", "deep/own.pt", "flat.pt"]) == tmp_path / "deep" / "own.pt"
    assert find_weights(tmp_path, ["none.pt"]) is None
    assert find_weights(None, ["flat.pt"]) is None


def test_a_weights_directory_must_exist(tmp_path):
    with pytest.raises(WeightsError, match="nowhere is not a directory"):
        find_weights(tmp_path / "nowhere", ["a.pt"])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_and_nothing_changes(source, target, path, value):
    state, before = source.state_dict(), copy.deepcopy(target)
    state["linear.weight"][0, 0] = value
    torch.save(state, path)
    with pytest.raises(WeightsError, match=r"not finite: linear\.weight"):
        load_weights_(target, path)
    assert_same(before, target)


def test_quantised_weights_are_refused(source, target, path):
    state = source.state_dict()
    state["linear.weight"] = state["linear.weight"].to(torch.int8)
    torch.save(state, path)
    with pytest.raises(WeightsError, match=r"whole numbers \(int8\) .* linear\.weight"):
        load_weights_(target, path)


class _Hostile:
    """Unpickling this creates a file, if anything lets it."""

    def __init__(self, target):
        self.command = f"touch {target}"

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture(name="file")
def _file(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"weight": torch.arange(1000.0)}, path)
    return path


def _save_hostile(path, target, form):
    if form == "raw pickle":
        path.write_bytes(pickle.dumps({"weight": _Hostile(target)}, protocol=2))
    else:
        torch.save({"weight": _Hostile(target)}, path, _use_new_zipfile_serialization=form == "zip")


@pytest.mark.parametrize("form", ["zip", "legacy", "raw pickle"])
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, form):
    path, target = tmp_path / "hostile.pt", tmp_path / "created"
    _save_hostile(path, target, form)
    with pytest.raises(WeightsError, match=r"hostile\.pt was refused: .* posix\.system"):
        read_checkpoint(path)
    assert not target.exists()


def test_the_hostile_pickle_would_really_create_the_file(tmp_path):
    path, target = tmp_path / "hostile.pt", tmp_path / "created"
    _save_hostile(path, target, "zip")
    torch.load(path, weights_only=False)
    assert target.exists()


def test_a_whole_pickled_model_is_refused_with_the_way_out(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    with pytest.raises(WeightsError, match=r"refused: .*Linear.* save model\.state_dict\(\) alone"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_torch_file_is_read(tmp_path, legacy):
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.ones(2)}, path, _use_new_zipfile_serialization=not legacy)
    assert read_checkpoint(path)["weight"].tolist() == [1, 1]


def test_a_safetensors_file_is_read_whatever_its_name(tmp_path):
    save_file({"weight": torch.ones(2)}, tmp_path / "weights.bin")
    assert read_checkpoint(tmp_path / "weights.bin")["weight"].tolist() == [1, 1]


def test_a_web_page_is_called_one(file):
    file.write_bytes(b"\n  <!DOCTYPE html><html><title>Quota exceeded</title></html>")
    with pytest.raises(WeightsError, match=r"checkpoint\.pt is a web page"):
        read_checkpoint(file)


def test_a_git_lfs_pointer_is_called_one(file):
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(WeightsError, match=r"Git LFS pointer.*git lfs pull"):
        read_checkpoint(file)


def test_a_compressed_file_is_called_one(file):
    file.write_bytes(gzip.compress(file.read_bytes()))
    with pytest.raises(WeightsError, match="compressed archive: unpack it"):
        read_checkpoint(file)


def test_an_empty_file_is_called_empty(file):
    file.write_bytes(b"")
    with pytest.raises(WeightsError, match="is empty"):
        read_checkpoint(file)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.99])
def test_a_truncated_file_is_called_cut_short_with_its_size(file, kept):
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(WeightsError, match=rf"cut short \({int(kept * len(content)):,} bytes\)"):
        read_checkpoint(file)


def test_a_truncated_legacy_file_is_reported(file):
    torch.save({"weight": torch.arange(1000.0)}, file, _use_new_zipfile_serialization=False)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(WeightsError, match="cannot be read as a checkpoint"):
        read_checkpoint(file)


def test_a_truncated_safetensors_file_is_reported(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file({"weight": torch.arange(1000.0)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(WeightsError, match="damaged or cut short safetensors"):
        read_checkpoint(path)


def test_a_file_of_another_kind_is_reported_with_its_first_bytes(file):
    file.write_bytes(b"weights: 1 2 3")
    with pytest.raises(WeightsError, match=r"neither a safetensors file nor one of torch\.save .*weights:"):
        read_checkpoint(file)


def test_a_zip_that_is_no_checkpoint_is_reported(file):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(WeightsError, match="cannot be read as a checkpoint"):
        read_checkpoint(file)


def test_a_missing_file_and_a_directory_are_told_apart(tmp_path):
    with pytest.raises(WeightsError, match="no checkpoint file"):
        read_checkpoint(tmp_path / "nothing.pt")
    with pytest.raises(WeightsError, match="is a directory"):
        read_checkpoint(tmp_path)


def test_state_dicts_are_found_wherever_they_are():
    weights = {"weight": torch.ones(1)}
    checkpoint = {
        "epoch": 3,
        "best": {"model": weights, "accuracy": 0.5},
        "ema": weights,
        "optimizer": {"state": {0: {"momentum": torch.ones(1)}}, "param_groups": [{"lr": 0.1}]},
    }
    assert list(state_dicts(checkpoint)) == ["best/model", "ema"]
