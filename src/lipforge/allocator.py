"""Freed memory that stays with the process: torch on a CPU asks for the same few megabytes again for every layer.

By default glibc may give such memory back to the system and fetch it again page by page, pass after pass; whether it
does depends on what the process has allocated before. The setting holds for the whole process, so the command line
makes it when it starts, and the library does not.
"""

import ctypes
from typing import Any

FROM_HEAP = 1 << 25
"""Bytes: up to this size an allocation comes from the heap. More than 32 MB is refused by older versions of glibc."""

KEPT = 1 << 30
"""Bytes of free memory at the end of the heap that are not given back."""

GROWTH = 1 << 26
"""Bytes by which the heap grows at least."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Let the process keep memory that it frees; whether glibc, which most of Linux has, took the setting.

    Python programs that use lipforge as a library get the same from the environment variables in docs/attacks.md.
    """
    mallopt = _mallopt()
    # The first alone decides: without it the others would make every large allocation a new one of the system.
    if mallopt is None or mallopt(_MMAP_THRESHOLD, FROM_HEAP) != 1:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT) == 1 and mallopt(_TOP_PAD, GROWTH) == 1)


def _mallopt() -> Any:
    """The C library's function; None where there is none: macOS, Windows, musl."""
    try:
        return ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return None
