import struct
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from lipforge.batching import ImageData
from lipforge.data import from_hugging_face, load_data, split
from lipforge.data.images import Prepare
from lipforge.errors import DataError, InputError, MissingExtraError
from tests.data.made import CLASSES, photo


@pytest.fixture(scope="module")
def datasets():
    return pytest.importorskip("datasets")


def make(datasets, count=6, size=(32, 40), label=None):
    pixels = [photo(seed, *size) for seed in range(count)]
    features = datasets.Features(
        {"picture": datasets.Image(), "kind": label or datasets.ClassLabel(names=list(CLASSES))}
    )
    rows = {"picture": [Image.fromarray(image) for image in pixels], "kind": [seed % 3 for seed in range(count)]}
    return datasets.Dataset.from_dict(rows, features=features), pixels


def test_a_hugging_face_data_set_is_image_data(datasets):
    ds, pixels = make(datasets)
    data = from_hugging_face(ds)
    assert isinstance(data, ImageData)
    assert (len(data), data.classes, data.class_names) == (6, 3, CLASSES)
    images, labels = data.batch([4, 1])
    assert torch.equal(images, torch.from_numpy(np.stack([pixels[4], pixels[1]]).transpose(0, 3, 1, 2)) / 255)
    assert labels.tolist() == [1, 1]


def test_a_dict_of_splits_is_its_test_with_train_as_training(datasets):
    ds = datasets.DatasetDict(train=make(datasets, 9)[0], test=make(datasets, 3)[0])
    calibration, _, test = split(from_hugging_face(ds, name="mine"), 9, 0)
    assert (len(calibration), len(test)) == (9, 3)


def test_a_saved_data_set_is_opened_by_its_path(datasets, tmp_path):
    make(datasets)[0].save_to_disk(tmp_path / "saved")
    assert len(load_data(f"hub:{tmp_path / 'saved'}", limit=2)) == 2


def test_images_are_resized_and_cropped_if_asked(datasets):
    data = from_hugging_face(make(datasets)[0], prepare=Prepare(24, 16, "bilinear"))
    assert data[0][0].shape == (3, 16, 16)


def test_without_class_names_the_largest_label_counts(datasets):
    assert from_hugging_face(make(datasets, label=datasets.Value("int64"))[0], label="kind").classes == 3


def test_an_unclear_column_must_be_named(datasets):
    ds = make(datasets, label=datasets.Value("int64"))[0]
    with pytest.raises(InputError, match="0 columns of the type ClassLabel; say which one by label="):
        from_hugging_face(ds)
    with pytest.raises(InputError, match="no column 'label', it has picture, kind"):
        from_hugging_face(ds, label="label")


def test_a_column_of_something_else_is_reported(datasets):
    with pytest.raises(DataError, match="column 'kind' of hugging-face must hold images, row 0 holds int"):
        from_hugging_face(make(datasets)[0], image="kind").batch([0])


def test_images_of_different_sizes_are_reported(datasets):
    mixed = datasets.concatenate_datasets([make(datasets)[0], make(datasets, size=(20, 20))[0]])
    with pytest.raises(DataError, match="different sizes"):
        from_hugging_face(mixed).batch([0, 7])


def test_a_missing_package_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match=r"lipforge\[hub\]"):
        load_data(f"hub:{tmp_path}")


def test_something_else_than_a_data_set_is_refused():
    with pytest.raises(InputError, match=r"ds must be a datasets\.Dataset"):
        from_hugging_face([1, 2, 3])


def test_a_saved_data_set_that_names_files_elsewhere_is_refused(datasets, tmp_path):
    """The library would open the path, or fetch the address, of an image that the table does not hold."""
    features = datasets.Features({"picture": datasets.Image(decode=False), "kind": datasets.ClassLabel(names=["a"])})
    folder = tmp_path / "saved"
    make(datasets, 1)[0].save_to_disk(str(folder))
    (arrow,) = folder.glob("*.arrow")
    with datasets.arrow_writer.ArrowWriter(features=features, path=str(arrow)) as writer:
        writer.write({"picture": {"bytes": None, "path": "/etc/hostname"}, "kind": 0})
        writer.finalize()
    with pytest.raises(DataError, match=r"saved .*reads the files that column 'picture' names"):
        load_data(f"hub:{folder}")


def test_an_arrow_file_whose_offsets_lead_out_of_it_is_refused(datasets, tmp_path):
    """Arrow itself would follow them, and end the process."""
    make(datasets, 3)[0].save_to_disk(str(tmp_path / "saved"))
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    pictures = datasets.load_from_disk(str(tmp_path / "saved")).data.column("picture")
    sizes = [len(picture["bytes"].as_py()) for picture in pictures]
    ends = struct.pack("<iii", sizes[0], sum(sizes[:2]), sum(sizes))
    whole = arrow.read_bytes()
    arrow.write_bytes(whole.replace(ends, struct.pack("<iii", sizes[0], 2**31 - 1, sum(sizes))))
    assert arrow.read_bytes() != whole
    with pytest.raises(DataError, match=r"saved is not a saved Hugging Face data set \(.*[Oo]ffset"):
        load_data(f"hub:{tmp_path / 'saved'}")
