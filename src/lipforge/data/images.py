"""Image files: which ones a folder holds, and each as the bytes that RobustBench's ImageNet evaluation would use."""

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lipforge.data.base import Bytes, Ints, chunks
from lipforge.errors import DataError, missing_extra

Interpolation = Literal["bicubic", "bilinear"]
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
# Pillow would also hand PostScript to an interpreter: a data file must not start a program.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
TEST_FOLDERS = ("val", "validation", "test")
MOST_WORKERS = 8
MOST_PIXELS = 89_478_485  # where Pillow begins to warn of a decompression bomb: a quarter of a GB as RGB
ROBUSTBENCH = "robustbench"


class UnreadableImage(Exception):  # noqa: N818 - it is caught inside this package and never reaches a user
    """A file that Pillow cannot decode as an image."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Image files below `root`, each in the sub-folder of its class."""

    root: Path
    class_names: tuple[str, ...]
    # No list of strings: reference counts would copy it into every worker, and memory would grow as images stream.
    names: npt.NDArray[np.bytes_]
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, index: int) -> Path:
        return Path(self.root, self.class_names[self.labels[index]], os.fsdecode(self.names[index].item()))

    def pick(self, indices: Ints) -> "Listing":
        return Listing(self.root, self.class_names, self.names[indices], self.labels[indices])

    def digest(self) -> str:
        """SHA-256 over the names and labels in order: the same for a copy of the folder elsewhere."""
        text = hashlib.sha256("\0".join(self.class_names).encode(errors="surrogateescape"))
        text.update(b"\0".join(self.names.tolist()))
        text.update(self.labels.astype("<i8").tobytes())
        return text.hexdigest()


class Prepare(NamedTuple):
    """The shorter side gets `resize` pixels, then the middle `crop` x `crop` is cut out; None leaves a step out."""

    resize: int | None = None
    crop: int | None = None
    interpolation: Interpolation = "bicubic"

    def __call__(self, image: Image.Image) -> Image.Image:
        if self.resize is not None:
            image = resize_shorter(image, self.resize, self.interpolation)
        return image if self.crop is None else crop_centre(image, self.crop)


class Decoded(NamedTuple):
    """One batch: bytes (N, 3, H, W) and labels of the readable images, and (index, reason) of the others."""

    images: Tensor
    labels: Tensor
    failures: list[tuple[int, str]]


def list_files(root: Path, class_names: tuple[str, ...] = ()) -> Listing:
    """Every image file in the sub-folders of `root`, by class and name; a sub-folder without any keeps its label."""
    found = class_folders(root)
    if not found:
        raise DataError(f"{root} has no sub-folders; an image folder has one per class, as in {root}/n01440764/*.JPEG")
    unknown = sorted(set(found) - set(class_names))
    if class_names and unknown:
        raise DataError(f"{root} has the sub-folder '{unknown[0]}', which class_names does not name")
    class_names = class_names or found
    files = [_image_files(root / folder) for folder in class_names]
    if not any(files):
        raise DataError(f"no images in the {len(found)} sub-folders of {root}; looked for {', '.join(SUFFIXES)}")
    labels = np.repeat(np.arange(len(files), dtype=np.int64), [len(names) for names in files])
    return Listing(root, class_names, np.array([name for names in files for name in names]), labels)


def class_folders(root: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def read_listing(listing: Listing, path: Path) -> Listing:
    """The files that a text file names, one "class/file" per line, in its order; for "robustbench" its own list."""
    path = robustbench_list() if str(path) == ROBUSTBENCH else path
    try:
        wanted = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise DataError(f"the list of files {path} cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"the list of files {path} must be text in UTF-8, one class/file per line: {error}") from None
    pairs = zip(listing.labels.tolist(), listing.names.tolist(), strict=True)
    known = {f"{listing.class_names[label]}/{os.fsdecode(name)}": at for at, (label, name) in enumerate(pairs)}
    missing = [name for name in wanted if name not in known]
    if len(set(wanted)) < len(wanted):
        raise DataError(f"{path} lists {max(wanted, key=wanted.count)} more than once")
    if missing or not wanted:
        example = f", for example {missing[0]}" if missing else ""
        raise DataError(f"{path} lists {len(wanted)} files, {len(missing)} of them not in {listing.root}{example}")
    return listing.pick(np.array([known[name] for name in wanted], dtype=np.int64))


def robustbench_list() -> Path:
    """RobustBench's list of the 5,000 validation images of ImageNet that it tests on, in its installed package."""
    spec = importlib.util.find_spec(ROBUSTBENCH)
    if spec is None or not spec.submodule_search_locations:
        raise missing_extra(ROBUSTBENCH, "zoo")
    return Path(spec.submodule_search_locations[0]) / "helper_files" / "imagenet_test_image_ids.txt"


def find_parts(root: Path) -> tuple[Path, Path | None]:
    """`root` itself and None, or its val/ (or test/) and train/ where it holds these, as ImageNet's own folder does."""
    parts = [name for name in ("train", *TEST_FOLDERS) if (root / name).is_dir() and class_folders(root / name)]
    if not parts:
        return root, None
    if parts == ["train"]:
        raise DataError(f"{root} holds train/ but no val/; name the one you mean: folder:{root / 'train'}")
    test = next(name for name in TEST_FOLDERS if name in parts)
    return root / test, root / "train" if "train" in parts else None


def read_image(path: str | Path, prepare: Prepare) -> Bytes:
    """The image in `path` as RGB bytes (3, H, W), resized and cropped."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"has {image.width} x {image.height} pixels, more than {MOST_PIXELS:,}")
            return to_bytes(prepare(image.convert("RGB")))
    except Exception as error:  # Pillow raises whatever broken bytes lead to, such as SyntaxError for a PNG
        reason = str(error).replace(f" '{path}'", "").replace(str(path), "it")
        raise UnreadableImage(f"{path}: {reason}") from None


def resize_shorter(image: Image.Image, size: int, interpolation: Interpolation) -> Image.Image:
    """`image` scaled so that its shorter side has `size` pixels; the longer side is rounded down."""
    short = min(image.size)
    if short == size:
        return image
    width, height = (size if side == short else int(size * side / short) for side in image.size)
    return image.resize((width, height), FILTERS[interpolation])


def crop_centre(image: Image.Image, size: int) -> Image.Image:
    """The middle `size` x `size` pixels, with black around an image that is smaller."""
    # An odd margin, as torchvision has it: a cut starts at the nearest even pixel, padding puts its smaller half first.
    left, top = (round((side - size) / 2) if side >= size else -((size - side) // 2) for side in image.size)
    return image.crop((left, top, left + size, top + size))


def to_bytes(image: Image.Image) -> Bytes:
    """RGB bytes (3, H, W)."""
    return np.ascontiguousarray(np.asarray(image.convert("RGB"), dtype=np.uint8).transpose(2, 0, 1))


def decode_batch(listing: Listing, prepare: Prepare, indices: Ints) -> Decoded:
    """The images at `indices` as one batch, decoded in this process."""
    files = _Files(listing, prepare)
    return files.stack([files[index] for index in indices.tolist()])


def decode_files(
    listing: Listing, prepare: Prepare, indices: Ints, batch_size: int, workers: int | None
) -> Iterator[Decoded]:
    """The images at `indices` in that order, batch by batch; `workers=None` uses the cores there are."""
    parts = [part.tolist() for part in chunks(indices, batch_size)]
    if workers is None:
        # Those that this process may use, which in a container are fewer than the machine has.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, MOST_WORKERS)
    files = _Files(listing, prepare)
    yield from DataLoader(
        files,
        batch_sampler=parts,
        num_workers=min(workers, len(parts)) if len(parts) > 1 else 0,
        collate_fn=files.stack,
        # Without a generator of its own, a loader draws from torch's global one.
        generator=torch.Generator().manual_seed(0),
    )


class _Files(Dataset[tuple[int, Bytes | str]]):
    """Each file decoded, or the reason why not: an exception would lose its type on the way from a worker."""

    def __init__(self, listing: Listing, prepare: Prepare) -> None:
        self.listing, self.prepare = listing, prepare

    def __getitem__(self, index: int) -> tuple[int, Bytes | str]:
        try:
            return index, read_image(self.listing.path(index), self.prepare)
        except UnreadableImage as error:
            return index, str(error)

    def stack(self, decoded: list[tuple[int, Bytes | str]]) -> Decoded:
        """One batch of what could be decoded; images must have the size of the first."""
        images: list[Bytes] = []
        labels: list[int] = []
        failures: list[tuple[int, str]] = []
        for index, image in decoded:
            if isinstance(image, str):
                failures.append((index, image))
            elif images and image.shape != images[0].shape:
                found, others = (f"{shape[2]}x{shape[1]}" for shape in (image.shape, images[0].shape))
                reason = f"has {found} pixels, others have {others}; set resize and crop"
                failures.append((index, f"{self.listing.path(index)}: {reason}"))
            else:
                images.append(image)
                labels.append(int(self.listing.labels[index]))
        side = self.prepare.crop or 0
        stacked = np.stack(images) if images else np.zeros((0, 3, side, side), np.uint8)
        return Decoded(torch.from_numpy(stacked), torch.tensor(labels, dtype=torch.int64), failures)


def _image_files(folder: Path) -> list[bytes]:
    files: list[str] = []
    for parent, _, names in os.walk(folder, followlinks=True):
        relative = os.path.relpath(parent, folder)
        inside = "" if relative == "." else f"{relative}/"
        # Files such as "._n01440764_36.JPEG" are a Mac's notes on the image, not the image.
        files += [f"{inside}{name}" for name in names if name.lower().endswith(SUFFIXES) and not name.startswith(".")]
    return [os.fsencode(name) for name in sorted(files)]
