"""Files made to do harm: none of them runs code, fills the memory, or makes lipforge read or write elsewhere."""

import gzip
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lipforge as lf
from lipforge.data.fetch import read_archive
from lipforge.errors import DataError, InputError, LipforgeError, WeightsError
from lipforge.models.weights import read_checkpoint
from lipforge.results import CleanResult
from lipforge.runs import RunDir
from tests.data.made import idx_file, tar_file
from tests.fuzz.engine import _most_resident, _resident
from tests.fuzz.formats import KINDS, NONE, toy

ADVICE = ("weights_only", "allow_pickle", "pickle.load")
LARGE = 192 << 20  # bytes that a bomb unpacks to: more than reading may take


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, ran: Path) -> None:
        self.ran = ran

    def __reduce__(self):
        return os.mkdir, (str(self.ran),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.slow])
def test_a_pickle_in_the_place_of_a_file_does_not_run(name, protocol, tmp_path):
    kind, ran = KINDS[name], tmp_path / "ran"
    path = tmp_path / "given" / kind.file
    path.parent.mkdir(parents=True)
    kind.write(path)
    path.write_bytes(pickle.dumps({"model": Runs(ran)}, protocol))
    said = ""
    try:
        kind.read(path)
    except (LipforgeError, UserWarning) as error:  # a shard that is none is set aside with a warning
        said = str(error)
    assert not any(word in said for word in ADVICE)
    assert bool(said) != (name == "environment"), "notes on sessions are the one thing that is written anew in silence"
    assert not ran.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_checkpoint_that_calls_a_function_is_refused_with_its_name(tmp_path, zipped):
    torch.save({"model": Runs(tmp_path / "ran")}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match=r"a\.pt was refused: to load it, Python would have to call posix\.mkdir"):
        read_checkpoint(tmp_path / "a.pt")
    assert not (tmp_path / "ran").exists()


def test_a_bare_pickle_given_as_weights_is_refused_without_advice_to_unpickle_it(tmp_path):
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"weight": np.zeros(3)}))
    with pytest.raises(WeightsError, match="must not run code") as refusal:
        read_checkpoint(tmp_path / "a.pt")
    assert not any(word in str(refusal.value) for word in ADVICE)


def archive(kind: bytes, target: str, name: str) -> bytes:
    """An archive with every batch, one of them a link, a device or a folder, or under another name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as made:
        for batch, content in toy().batches.items():
            member = tarfile.TarInfo(f"toy-py/{batch}")
            if batch == "last":
                member.name, member.type, member.linkname = name, kind, target
            member.size = len(content) if member.isfile() else 0
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "target", "name"),
    [
        (tarfile.SYMTYPE, "/etc/passwd", "toy-py/last"),
        (tarfile.LNKTYPE, "toy-py/one", "toy-py/last"),
        (tarfile.CHRTYPE, "", "toy-py/last"),
        (tarfile.FIFOTYPE, "", "toy-py/last"),
        (tarfile.DIRTYPE, "", "toy-py/last"),
        (tarfile.REGTYPE, "", "../toy-py/last"),
        (tarfile.REGTYPE, "", "/toy-py/last"),
    ],
)
def test_an_archive_of_links_devices_or_other_places_is_refused_and_nothing_unpacked(tmp_path, kind, target, name):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    path = inside / toy().python.archive
    path.write_bytes(archive(kind, target, name))
    with pytest.raises(DataError, match=rf"{path.name} (holds toy-py/last, which must be|must hold toy-py/last)"):
        read_archive(path, replace(toy().python, md5="", size=0))
    assert list(tmp_path.rglob("*.*")) == [path]


def zeros(path: Path, name: str, header: bytes) -> None:
    """A zip archive of less than a megabyte whose one entry is large."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made,
        made.open(name, "w", force_zip64=True) as entry,
    ):
        entry.write(header)
        for _ in range(64):
            entry.write(bytes(LARGE // 64))


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def packed_idx(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    with gzip.open(path / "t10k-images-idx3-ubyte.gz", "wb", compresslevel=1) as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, LARGE >> 10, 32, 32))
        for _ in range(64):
            file.write(bytes(LARGE // 64))
    (path / "t10k-labels-idx1-ubyte").write_bytes(idx_file(np.zeros(3)))


def large_idx(path: Path) -> None:
    (path / "t10k-images-idx3-ubyte").write_bytes(struct.pack(">4B3I", 0, 0, 8, 3, 2**31, 2**15, 2**15))
    (path / "t10k-labels-idx1-ubyte").write_bytes(idx_file(np.zeros(3)))


def large_npz(path: Path) -> None:
    np.savez(path / "a.npz", images=np.zeros((3, 1, 8, 8)), labels=np.zeros(3, int))
    with zipfile.ZipFile(path / "a.npz", "w") as made:
        made.writestr("images.npy", npy_header("(1000000000000, 3, 32, 32)"))
        made.writestr("labels.npy", npy_header("(3,)") + bytes(3))


def large_npy(path: Path) -> None:
    (path / "images.npy").write_bytes(npy_header("(1000000000000, 3, 32, 32)"))
    np.save(path / "labels.npy", np.zeros(3, int))


def large_picture(path: Path) -> None:
    (path / "ant").mkdir()
    Image.new("1", (12_000, 12_000)).save(path / "ant" / "a.png")


def packed_tar(path: Path) -> None:
    (path / toy().python.archive).write_bytes(tar_file({"toy-py/one": bytes(64 << 20)}))


BOMBS = {
    "gzipped idx": (packed_idx, lambda path: lf.load_data(f"idx:{path}"), r"idx3-ubyte\.gz unpacks to more than"),
    "npz": (
        lambda path: zeros(path / "a.npz", "images.npy", npy_header("(196608, 1, 32, 32)")),
        lambda path: lf.load_data(f"npz:{path / 'a.npz'}"),
        r"a\.npz unpacks to more than",
    ),
    "checkpoint": (
        lambda path: zeros(path / "a.pt", "archive/data/0", b""),
        lambda path: read_checkpoint(path / "a.pt"),
        r"a\.pt unpacks to more than",
    ),
    "program": (
        lambda path: zeros(path / "a.pt2", "model/data", b""),
        lambda path: lf.load_exported(path / "a.pt2"),
        "unpacks to more than",
    ),
    "archive": (
        packed_tar,
        lambda path: read_archive(path / toy().python.archive, replace(toy().python, md5="", size=0)),
        "unpacks to more than",
    ),
    "idx of 2^31 images": (large_idx, lambda path: lf.load_data(f"idx:{path}"), "must have .* bytes for"),
    "npz of 10^12 images": (large_npz, lambda path: lf.load_data(f"npz:{path / 'a.npz'}"), "not a readable NumPy"),
    "npy of 10^12 images": (large_npy, lambda path: lf.load_data(f"npy:{path}"), "not a readable NumPy"),
    "picture": (
        large_picture,
        lambda path: lf.load_data(f"folder:{path}", folder=NONE)[0],
        r"a\.png: .*12000 x 12000 pixels, more than 89,478,485",
    ),
}


@pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_promises_much_is_refused_at_once(name, tmp_path):
    write, read, message = BOMBS[name]
    write(tmp_path)
    started, before = time.monotonic(), _resident()
    with pytest.raises(LipforgeError, match=message):
        read(tmp_path)
    assert _most_resident() - before < 128 << 20
    assert time.monotonic() - started < 5.0


def test_only_the_function_that_the_user_named_runs_with_the_file_that_it_is_in(tmp_path):
    (tmp_path / "other.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (tmp_path / "net.py").write_text(
        "from torch import nn\ndef build(): return nn.Linear(2, 2)\n"
        f"def never(): open({str(tmp_path / 'ran')!r}, 'w')\n"
    )
    lf.load_model(f"{tmp_path / 'net.py'}:build")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "link", ["environment.json", "results", "shards", "results/a.json", "shards/task", "report.html"]
)
def test_a_run_directory_that_links_to_other_places_is_refused(tmp_path, link):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.mkdir()
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(victim)
    for use in (RunDir.open, lf.write_report):
        with pytest.raises(InputError, match=r"is a link that leads out of .*run, to .*victim"):
            use(run)
    assert not list(victim.iterdir())


@pytest.mark.parametrize("name", ["\ud800", "\x1b[2J"])
def test_a_name_that_is_no_text_does_not_stop_a_report(tmp_path, name):
    RunDir.open(tmp_path, command=name).write_result("clean", CleanResult(10, 7, 0.7, (0.35, 0.93)))
    (tmp_path / "results" / "other.json").write_text(json.dumps({"kind": name, "format": 2}))
    assert "other" in lf.write_report(tmp_path).read_text(encoding="utf-8")


def test_a_lock_that_is_a_link_does_not_empty_the_file_behind_it(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "victim").write_text("precious")
    (tmp_path / "run" / ".environment.lock").symlink_to("victim")
    with pytest.raises(LipforgeError, match=r"\.environment\.lock cannot be locked"):
        RunDir.open(tmp_path / "run")
    assert (tmp_path / "run" / "victim").read_text() == "precious"
