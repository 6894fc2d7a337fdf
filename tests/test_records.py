import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from lipforge.errors import InputError
from lipforge.records import read_json, to_plain, write_json, write_whole


@dataclass(frozen=True)
class Result:
    name: str
    values: tuple[float, ...]
    where: Path


def test_a_dataclass_survives_as_json(tmp_path):
    write_json(tmp_path / "a" / "b.json", {"result": Result("x", (1.0, 0.1), Path("p"))})
    assert read_json(tmp_path / "a" / "b.json") == {"result": {"name": "x", "values": [1.0, 0.1], "where": "p"}}


def test_nan_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match="Out of range"):
        write_json(tmp_path / "x.json", {"value": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "x"
    write_whole(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_written_file_has_the_ordinary_mode(tmp_path):
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    write_whole(tmp_path / "ours", b"")
    assert (tmp_path / "ours").stat().st_mode == ordinary.stat().st_mode


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"<html>"])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json is not valid JSON"):
        read_json(path)


def test_a_folder_is_no_json_file(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_json(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no file"):
        read_json(tmp_path / "none.json")


def test_plain_values_stay():
    assert to_plain({"a": [1, None, "x", True]}) == {"a": [1, None, "x", True]}
