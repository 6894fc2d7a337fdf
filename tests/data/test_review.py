"""Faults that a review found, each kept out by a test."""

import shutil

import pytest
import torch
from PIL import Image

from lipforge.data import FolderOptions, load_data
from lipforge.errors import DataError, InputError
from lipforge.models import load_model

SMALL = FolderOptions(resize=None, crop=None, workers=0)


def save_image(path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (10, 20, 30)).save(path)


def test_train_and_val_share_one_numbering_of_classes(tmp_path):
    for name in ("train/cat", "train/dog", "train/emu", "val/dog", "val/emu"):
        save_image(tmp_path / name / "1.png")
    data = load_data(f"folder:{tmp_path}", folder=SMALL)
    assert data.training is not None
    assert data.class_names == data.training.class_names == ("cat", "dog", "emu")
    assert [label for _, label in (data[index] for index in range(2))] == [1, 2]


def test_postscript_in_an_image_folder_starts_no_program(tmp_path, monkeypatch):
    save_image(tmp_path / "images/cat/1.png")
    marker, fake = tmp_path / "was-run", tmp_path / "bin" / "gs"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{shutil.which('touch')} {marker}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    (tmp_path / "images/cat/2.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    data = load_data(f"folder:{tmp_path / 'images'}", folder=SMALL)
    with pytest.raises(DataError, match=r"2\.jpg"):
        data.batch([0, 1])
    assert not marker.exists()


def test_a_file_listed_twice_is_refused(tmp_path):
    save_image(tmp_path / "images/cat/1.png")
    (tmp_path / "list.txt").write_text("cat/1.png\ncat/1.png\n")
    options = FolderOptions(resize=None, crop=None, workers=0, files=str(tmp_path / "list.txt"))
    with pytest.raises(DataError, match=r"lists cat/1\.png more than once"):
        load_data(f"folder:{tmp_path / 'images'}", folder=options)


def test_an_empty_name_of_a_weights_file_is_refused():
    with pytest.raises(InputError, match="weights must name a checkpoint file, got an empty text"):
        load_model("resnet20", "")


@pytest.mark.zoo
@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_vit_are_refused_rather_than_resampled(tmp_path):
    import timm

    from lipforge.errors import WeightsError

    other = timm.create_model("vit_tiny_patch16_384", pretrained=False)
    torch.save(other.state_dict(), tmp_path / "other.pt")
    with pytest.raises(WeightsError, match="pos_embed"):
        load_model("timm:vit_tiny_patch16_224", tmp_path / "other.pt")
