"""The files of a layout, out of a tar archive or a folder, checked before anything looks inside them."""

import hashlib
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from lipforge.data.download import check_md5
from lipforge.data.known import Layout, Split
from lipforge.errors import DataError


def read_archive(path: Path, layout: Layout) -> dict[Split, Mapping[str, bytes]]:
    """The files of every split in a gzipped tar archive; nothing is unpacked to disk."""
    if layout.size and path.stat().st_size < layout.size:
        raise DataError(f"{path} is cut short: {path.stat().st_size} bytes, the published file has {layout.size}")
    if layout.md5:
        check_md5(path, layout.md5)
    wanted = {f"{layout.inside}/{name}" for names in layout.files.values() for name in names}
    try:
        with tarfile.open(path, "r:gz") as archive:
            members = (member for member in archive if member.name in wanted)
            opened = ((member.name, archive.extractfile(member)) for member in members)
            contents = {name: file.read() for name, file in opened if file is not None}
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a readable archive ({error}); was it cut short?") from None
    missing = sorted(wanted - set(contents))
    if missing:
        raise DataError(f"{path} must hold {missing[0]}; is it another archive?")
    return {
        split: {name: contents[f"{layout.inside}/{name}"] for name in names} for split, names in layout.files.items()
    }


def read_folder(folder: Path, layout: Layout) -> dict[Split, Mapping[str, bytes]]:
    """The files of every split in a folder, plain or gzipped, each with its published MD5 where there is one."""
    return {split: {name: _read_file(folder, name, layout) for name in names} for split, names in layout.files.items()}


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in `folder`, plain or gzipped; idx3 may be written with a dot, as some tools unpack it."""
    spellings = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / spelling for spelling in spellings if (folder / spelling).is_file()), None)


def _read_file(folder: Path, name: str, layout: Layout) -> bytes:
    path = find_file(folder, name)
    if path is None:
        raise DataError(f"{folder} must hold {name}; is the set complete?")
    content = path.read_bytes()
    expected = layout.file_md5.get(name)
    if expected and hashlib.md5(content, usedforsecurity=False).hexdigest() != expected:
        raise DataError(f"{path} has the wrong checksum; it is damaged or not the published file")
    return content
