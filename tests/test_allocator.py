"""Freed memory stays with the process, so that the next pass need not fetch it from the system page by page."""

import os
import platform
import subprocess
import sys

import pytest

from lipforge import allocator
from lipforge.allocator import FROM_HEAP, GROWTH, KEPT, keep_freed_memory
from lipforge.cli import main

FAULTS = """
import resource, sys
import torch
from lipforge.allocator import keep_freed_memory

def layers():
    x = torch.ones(2**22)  # 16 MB, as all that follow
    for _ in range(4):
        x = x + 1

if sys.argv[1] == "keep":
    assert keep_freed_memory()
for _ in range(3):
    layers()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    layers()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    """How often a process fetched a page from the system in ten passes, after three to warm up. Every large tensor is
    fetched anew at first: what glibc does by itself depends on what came before."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    command = [sys.executable, "-c", FAULTS, mode]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**ours, "MALLOC_MMAP_THRESHOLD_": "131072"}
    )
    return int(ended.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_passes_fetch_no_memory_again_once_it_is_kept() -> None:
    fetched = page_faults("default")
    if fetched < 10_000:  # of up to 204,800 pages of 4 kB
        pytest.skip("huge pages: there is little to fetch")
    assert 5 * page_faults("keep") < fetched


class Mallopt:
    """A C library that takes settings up to a size."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.asked: list[tuple[int, int]] = []

    def __call__(self, setting: int, value: int) -> int:
        self.asked.append((setting, value))
        return int(value <= self.most)


def test_all_three_settings_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Mallopt(KEPT)
    monkeypatch.setattr(allocator, "_mallopt", lambda: library)
    assert keep_freed_memory()
    assert library.asked == [(-3, FROM_HEAP), (-1, KEPT), (-2, GROWTH)]


def test_a_library_that_refuses_the_first_setting_gets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Mallopt(0)
    monkeypatch.setattr(allocator, "_mallopt", lambda: library)
    assert not keep_freed_memory()
    assert len(library.asked) == 1


def test_without_mallopt_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_freed_memory()


def test_the_command_line_keeps_freed_memory_and_the_library_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(main, "keep_freed_memory", lambda: calls.append("kept"))
    monkeypatch.setattr(sys, "argv", ["lipforge", "--version"])
    with pytest.raises(SystemExit):
        main.main()
    assert not calls
    with pytest.raises(SystemExit):
        main.start()
    assert calls == ["kept"]
    imported = "import lipforge, sys; lipforge.fast; sys.exit('lipforge.allocator' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imported], check=False).returncode == 0
