import numpy as np
import pytest
import torch
from PIL import Image

from lipforge.data.images import (
    Prepare,
    UnreadableImage,
    crop_centre,
    decode_files,
    find_parts,
    list_files,
    read_image,
    read_listing,
    resize_shorter,
    to_bytes,
)
from lipforge.errors import DataError
from tests.data.made import photo

SIZES = [(300, 400), (400, 300), (256, 256), (256, 511), (511, 256), (333, 257), (100, 90), (223, 1000), (225, 224)]


@pytest.mark.zoo
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("height", "width"), SIZES)
def test_resize_and_crop_equal_torchvisions_bit_for_bit(height, width, interpolation, torchvision):
    transforms = torchvision.transforms
    image = Image.fromarray(photo(height, height, width))
    peer = transforms.Compose(
        [
            transforms.Resize(256, interpolation=transforms.InterpolationMode(interpolation)),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
        ]
    )
    ours = torch.from_numpy(to_bytes(Prepare(256, 224, interpolation)(image))).float().div(255)
    assert torch.equal(ours, peer(image))


@pytest.mark.zoo
@pytest.mark.parametrize(("height", "width"), [(20, 40), (31, 33), (20, 21), (40, 20)])
def test_cropping_a_smaller_image_pads_it_as_torchvision_does(height, width, torchvision):
    transforms = torchvision.transforms
    image = Image.fromarray(photo(1, height, width))
    assert np.array_equal(to_bytes(crop_centre(image, 32)), to_bytes(transforms.CenterCrop(32)(image)))


@pytest.mark.parametrize(
    ("size", "expected"), [((300, 400), (256, 341)), ((400, 300), (341, 256)), ((256, 900), (256, 900))]
)
def test_the_shorter_side_is_resized_and_the_longer_rounded_down(size, expected):
    assert resize_shorter(Image.new("RGB", size), 256, "bicubic").size == expected


def test_the_crop_is_the_middle():
    image = Image.fromarray(np.arange(7 * 9 * 3, dtype=np.uint8).reshape(7, 9, 3))
    assert np.array_equal(np.asarray(crop_centre(image, 3)), np.asarray(image)[2:5, 3:6])


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_colour_mode_becomes_three_bytes_per_pixel(mode, tmp_path):
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.fromarray(photo(2, 40, 50)).convert(mode).save(tmp_path / f"a.{suffix}")
    image = read_image(tmp_path / f"a.{suffix}", Prepare())
    assert (image.shape, str(image.dtype)) == ((3, 40, 50), "uint8")


def test_a_lossless_file_gives_its_own_pixels(tmp_path):
    pixels = photo(3, 33, 44)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png", Prepare()), pixels.transpose(2, 0, 1))


def damaged(path, damage):
    Image.fromarray(photo(4, 64, 64)).save(path)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "html": b"<html>404</html>"}[damage])
    return path


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("damage", ["empty", "cut", "html"])
def test_a_damaged_file_is_unreadable_and_named(tmp_path, suffix, damage):
    with pytest.raises(UnreadableImage, match=rf"bad\.{suffix}: "):
        read_image(damaged(tmp_path / f"bad.{suffix}", damage), Prepare(32, 32))


def test_a_missing_file_is_unreadable(tmp_path):
    with pytest.raises(UnreadableImage, match="No such file"):
        read_image(tmp_path / "gone.png", Prepare(32, 32))


def test_a_picture_far_too_large_for_memory_is_unreadable(tmp_path, monkeypatch):
    Image.new("1", (2000, 2000)).save(tmp_path / "bomb.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(UnreadableImage, match="exceeds limit"):
        read_image(tmp_path / "bomb.png", Prepare(32, 32))


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


SMALL = Prepare(40, 32, "bicubic")


def test_workers_give_the_same_batches_as_this_process(imagenet_like):
    listing, order = list_files(imagenet_like), np.arange(299, -1, -1)
    alone = list(decode_files(listing, SMALL, order, 64, workers=0))
    helped = list(decode_files(listing, SMALL, order, 64, workers=2))
    assert [len(batch.labels) for batch in alone] == [64, 64, 64, 64, 44]
    assert all(torch.equal(one.images, other.images) for one, other in zip(alone, helped, strict=True))
    assert torch.cat([batch.labels for batch in helped]).tolist() == listing.labels[order].tolist()


def test_reading_leaves_the_global_random_state_alone(imagenet_like):
    before = torch.get_rng_state()
    list(decode_files(list_files(imagenet_like), SMALL, np.arange(64), 32, workers=2))
    assert torch.equal(torch.get_rng_state(), before)


def test_images_stay_bytes_until_they_arrive(imagenet_like):
    batch = next(decode_files(list_files(imagenet_like), SMALL, np.arange(8), 8, workers=0))
    assert batch.images.dtype == torch.uint8


def test_a_failure_travels_as_data_and_the_others_are_read(imagenet_like, tmp_path):
    for name in ("1", "2", "3"):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{name}.JPEG").write_bytes((imagenet_like / "n00" / "img_0000.JPEG").read_bytes())
    (tmp_path / "a" / "2.JPEG").write_bytes(b"not an image")
    batch = next(decode_files(list_files(tmp_path), SMALL, np.arange(3), 3, workers=0))
    assert len(batch.images) == 2
    assert batch.failures[0][0] == 1
    assert "2.JPEG" in batch.failures[0][1]


def test_images_of_different_sizes_are_failures_when_nothing_crops_them(imagenet_like):
    batch = next(decode_files(list_files(imagenet_like), Prepare(), np.arange(5), 5, workers=0))
    assert len(batch.images) + len(batch.failures) == 5
    assert "set resize and crop" in batch.failures[0][1]
