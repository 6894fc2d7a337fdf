import gzip
import os
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lipforge.errors import WeightsError
from lipforge.models.checkpoint import read_checkpoint, state_dicts


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
