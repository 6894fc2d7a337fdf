import numpy as np
import pytest

from lipforge.data.listing import find_parts, list_files, read_listing
from lipforge.errors import DataError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return root


def test_files_are_sorted_by_class_then_name(tmp_path):
    listing = list_files(touch(tmp_path, "b/2.jpg", "b/1.PNG", "a/9.jpeg", "a/notes.txt", "a/.hidden.jpg", "loose.jpg"))
    assert [str(listing.path(at).relative_to(tmp_path)) for at in range(len(listing))] == [
        "a/9.jpeg",
        "b/1.PNG",
        "b/2.jpg",
    ]
    assert listing.labels.tolist() == [0, 1, 1]
    assert listing.class_names == ("a", "b")


def test_images_deeper_in_a_class_folder_are_found(tmp_path):
    listing = list_files(touch(tmp_path, "a/images/1.jpg", "b/1.jpg"))
    assert listing.path(0) == tmp_path / "a/images/1.jpg"


def test_an_empty_class_folder_keeps_its_label(tmp_path):
    (tmp_path / "b").mkdir()
    listing = list_files(touch(tmp_path, "a/1.jpg", "c/1.jpg"))
    assert (listing.labels.tolist(), listing.class_names) == ([0, 2], ("a", "b", "c"))


def test_given_class_names_keep_the_labels_of_a_partial_folder(tmp_path):
    listing = list_files(touch(tmp_path, "c/1.jpg"), ("a", "b", "c"))
    assert listing.labels.tolist() == [2]


def test_a_sub_folder_that_class_names_lacks_is_refused(tmp_path):
    with pytest.raises(DataError, match="sub-folder 'c', which class_names does not name"):
        list_files(touch(tmp_path, "c/1.jpg"), ("a", "b"))


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no sub-folders"):
        list_files(tmp_path)


def test_a_folder_without_images_is_refused(tmp_path):
    with pytest.raises(DataError, match="no images in the 1 sub-folders"):
        list_files(touch(tmp_path, "a/readme.txt"))


def test_names_of_any_alphabet_survive(tmp_path):
    listing = list_files(touch(tmp_path, "café/naïve 猫.jpg"))
    assert listing.path(0).exists()


def test_a_million_names_take_no_python_objects(tmp_path):
    listing = list_files(touch(tmp_path, *(f"a/{number}.jpg" for number in range(100))))
    assert listing.names.dtype.kind == "S"
    assert listing.names.nbytes <= 100 * len("99.jpg")


def test_a_list_of_files_picks_exactly_those_in_its_order(tmp_path):
    listing = list_files(touch(tmp_path / "root", "a/1.jpg", "a/2.jpg", "b/3.jpg"))
    (tmp_path / "list.txt").write_text("b/3.jpg\na/1.jpg\n")
    picked = read_listing(listing, tmp_path / "list.txt")
    assert [picked.path(at).name for at in range(2)] == ["3.jpg", "1.jpg"]
    assert picked.labels.tolist() == [1, 0]


def test_a_list_that_names_missing_files_says_how_many_and_which(tmp_path):
    listing = list_files(touch(tmp_path / "root", "a/1.jpg"))
    (tmp_path / "list.txt").write_text("a/1.jpg\na/7.jpg\na/8.jpg\n")
    with pytest.raises(DataError, match=r"lists 3 files, 2 of them not in .*, for example a/7\.jpg"):
        read_listing(listing, tmp_path / "list.txt")


def test_val_beside_train_is_the_test_part(tmp_path):
    touch(tmp_path, "train/a/1.jpg", "val/a/1.jpg")
    assert find_parts(tmp_path) == (tmp_path / "val", tmp_path / "train")


def test_class_folders_that_happen_to_be_called_val_are_classes(tmp_path):
    touch(tmp_path, "train/1.jpg", "val/1.jpg")
    assert find_parts(tmp_path) == (tmp_path, None)


def test_train_alone_must_be_named(tmp_path):
    with pytest.raises(DataError, match=r"holds train/ but no val/.*folder:.*train"):
        find_parts(touch(tmp_path, "train/a/1.jpg"))


def test_the_digest_depends_on_names_and_order_but_not_on_the_place(tmp_path):
    here, there = (list_files(touch(tmp_path / place, "a/1.jpg", "a/2.jpg")) for place in ("here", "there"))
    assert here.digest() == there.digest() != here.pick(np.array([1, 0])).digest()
