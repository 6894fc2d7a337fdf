"""Damage a file, have it read, and say what that led to: an answer, an error that names it, or something worse."""

import json
import random
import resource
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipforge.errors import LipforgeError
from tests.fuzz.formats import KINDS, Kind

SECONDS = 5.0
TIMES, CONSTANT = 4, 128 << 20  # bytes that reading may take: 4 times the file, and what decoders need for anything
SPACE = 4 << 30  # address space beyond that of now, so that a bomb is an error and not the end of the machine
VALUES: list[Any] = [
    None,
    -1,
    0,
    1e300,
    10**12,
    10**40,
    "",
    "../../x",
    [],
    {},
    True,
    "é\x1b[31m" * 9,
    [[[]]],
    {"a": [1]},
]
PIECES = [
    b"", b"\0" * 8, b"\xff" * 8, b"\x7f\xff\xff\xff", b"1000000000000", b"-1", b"NaN", b"1e999", b"null", b"[" * 3000,
    b"../../../etc/passwd", b"\x80\x04c", b"cos\nsystem\n", b"\xed\xa0\x80",
]  # fmt: skip
REPLACEMENTS = [b"", b"\0", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x80\x02}", b"<html>login</html>", b"{" * 5000, b"[1]\n"]
ACTIONS = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pickle.find_class")

_watched: list[str] | None = None
_inside = ""


@dataclass
class Seen:
    """What came of the inputs of one kind; `complaints` says what must never happen."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    worst: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0
    bytes: int = 0


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a reader does besides reading: files that it writes elsewhere, programs, connections, unpickling."""
    if _watched is None:
        return
    if event in ACTIONS:
        _watched.append(f"{event} {arguments[:1]}")
    path, mode = (str(arguments[0]), str(arguments[1])) if event == "open" else ("", "")
    if any(letter in mode for letter in "wax+") and not path.startswith((_inside, "/proc/", "/dev/")):
        _watched.append(f"open {path} for writing")


sys.addaudithook(_watch)


def mutate(content: bytes, chance: random.Random) -> bytes:
    """The content of a file, damaged in one to four places; now and then something else altogether."""
    if chance.random() < 0.04:
        return chance.choice(REPLACEMENTS)
    if content[:1] in b"{[" and chance.random() < 0.6:
        return json.dumps(_changed(json.loads(content), chance)).encode()
    for _ in range(chance.choice([1, 1, 2, 4])):
        # Headers are where the promises are, and an archive's directory is at its end.
        place = chance.choice([chance.randrange(len(content) + 1), chance.randrange(min(200, len(content) + 1))])
        length = chance.choice([1, 1, 2, 4, 8, 64])
        before, piece, after = content[:place], content[place : place + length], content[place + length :]
        changed = [
            bytes(byte ^ (1 << chance.randrange(8)) for byte in piece),
            chance.randbytes(len(piece)),
            chance.choice(PIECES),
            piece + piece,
            b"",
        ]
        content = before + chance.choice(changed) + after if chance.random() < 0.93 else before
    return content


def _changed(value: Any, chance: random.Random) -> Any:
    """A JSON value with another one somewhere in it, or without a key."""
    if isinstance(value, dict | list) and value and chance.random() < 0.85:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.15:
            del value[key]
        else:
            value[key] = _changed(value[key], chance)
        return value
    return chance.choice(VALUES)


def try_kind(name: str, inputs: int, folder: Path, seed: int) -> Seen:
    """Read `inputs` damaged files of one kind; the whole file must be readable."""
    kind, seen = KINDS[name], Seen()
    whole = folder / "whole" / kind.file
    whole.parent.mkdir(parents=True)
    kind.write(whole)
    kind.read(whole)
    content = whole.read_bytes()
    # What reading changed is not part of the file: each input gets a fresh folder with the others beside it.
    chance = random.Random(f"{seed} {name}")
    for number in range(inputs):
        try_input(kind, mutate(content, chance), folder, seen, f"{name} {number}")
    return seen


def try_input(kind: Kind, content: bytes, folder: Path, seen: Seen, label: str) -> None:
    """Read one damaged file in a folder of its own."""
    place = folder / "tried"
    shutil.copytree(folder / "whole", place)
    path = place / kind.file
    path.write_bytes(content)
    started, before = time.monotonic(), _resident()
    complaint = _read(kind, path, seen)
    took, memory = time.monotonic() - started, _most_resident() - before
    if took > SECONDS:
        complaint = complaint or f"took {took:.1f} s"
    if memory > TIMES * len(content) + CONSTANT:
        complaint = complaint or f"took {memory >> 20} MB for {len(content)} bytes"
    seen.inputs += 1
    seen.seconds, seen.bytes = max(seen.seconds, took), max(seen.bytes, memory)
    if complaint:
        seen.complaints.append(f"{label}: {complaint}; starts {content[:60]!r}")
    shutil.rmtree(place)


def _read(kind: Kind, path: Path, seen: Seen) -> str:
    """What is wrong with how the file was read, or nothing."""
    global _watched, _inside
    _watched, _inside = [], str(path.parents[len(Path(kind.file).parts) - 1])
    space = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + SPACE, space[1]))
    signal.signal(signal.SIGALRM, _hang)
    signal.setitimer(signal.ITIMER_REAL, SECONDS + 1)
    complaint = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind.read(path)
        seen.read += 1
    except LipforgeError as error:
        seen.refused += 1
        named = path.name in str(error) or str(path.parent) in str(error)
        advice = "weights_only" in str(error) or "allow_pickle" in str(error)
        complaint = f"unnamed: {error}" if not named else f"advice to unpickle: {error}" if advice else ""
    except BaseException as error:
        complaint = f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, space)
        done, _watched = _watched, None
    return complaint or "; ".join(done)


def _hang(*_: object) -> None:
    raise TimeoutError(f"still reading after {SECONDS:g} s")


def _resident() -> int:
    """Bytes in memory now; the largest amount is counted anew from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _most_resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
