"""Downloads that continue where they stopped, are checked, and appear under their name only when whole."""

import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import BinaryIO

from lipforge.errors import DataError
from lipforge.progress import Step, progress

TRIES = 5
TIMEOUT = 30.0
BLOCK = 1 << 18


def download(url: str, target: Path, *, size: int, md5: str, tries: int = TRIES, pause: float = 1.0) -> Path:
    """`target`, holding exactly the published file: `size` bytes with this MD5.

    Bytes arrive in `target`.part, which a later try, in this process or another day, continues. A file with the
    wrong checksum is deleted and reported, never used.
    """
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
        kept = f"; {_size(part)} of {size} bytes are kept, the next try continues them" if _size(part) else ""
        raise DataError(f"{url} could not be downloaded ({reason or 'the file is shorter than published'}){kept}")
    try:
        check_md5(part, md5)
    except DataError:
        part.unlink()
        raise
    os.replace(part, target)
    return target


def check_md5(path: Path, md5: str) -> None:
    """Raise unless the file at `path` has this MD5."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        raise DataError(f"{path} has the wrong checksum: MD5 {found}, the published file has {md5}")


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
            _copy(answer, file, step)


def _copy(answer: http.client.HTTPResponse, file: BinaryIO, step: Step) -> None:
    try:
        while block := answer.read(BLOCK):
            file.write(block)
            step(len(block))
    finally:
        file.flush()
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
