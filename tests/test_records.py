import json
import os
import resource
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from lipforge.errors import InputError, WriteError
from lipforge.records import ABANDONED, Share, from_builtins, read_json, sweep, to_builtins, write_json, write_whole


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


def test_a_file_that_cannot_be_written_is_named_with_the_reason_and_the_way_out(tmp_path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        with pytest.raises(WriteError, match=r"large\.json cannot be written \(File too large\); make room"):
            write_whole(tmp_path / "large.json", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert not list(tmp_path.iterdir())


def test_only_old_half_written_files_are_swept_away(tmp_path):
    old, new, kept = (tmp_path / "shards" / name for name in (".a.json.1-aa.part", ".b.json.1-bb.part", "c.json"))
    old.parent.mkdir()
    for path in (old, new, kept):
        path.write_bytes(b"half")
    for path in (old, kept):
        os.utime(path, (time.time() - ABANDONED - 60,) * 2)
    sweep(tmp_path)
    assert sorted(tmp_path.rglob("*.*")) == sorted([new, kept])


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


def test_half_a_surrogate_pair_survives_as_json(tmp_path):
    write_json(tmp_path / "x.json", {"path": "caf\udce9"})
    assert read_json(tmp_path / "x.json") == {"path": "caf\udce9"}


def test_builtin_values_stay():
    assert to_builtins({"a": [1, None, "x", True]}) == {"a": [1, None, "x", True]}


@dataclass(frozen=True)
class Inner:
    count: int
    share: float | None = None


@dataclass(frozen=True)
class Outer:
    name: str
    word: Literal["a", "b"]
    pair: tuple[float, float]
    parts: tuple[Inner, ...]
    ratio: float | Mapping[str, float]
    flag: bool | None
    inner: Inner | None = None
    part: Share = 0.5


OUTER = Outer("x", "b", (0.5, 1.0), (Inner(1), Inner(2, 0.25)), {"a": 0.5}, None, Inner(3))


@pytest.mark.parametrize("value", [OUTER, replace(OUTER, ratio=0.5, flag=True, inner=None, parts=())])
def test_a_dataclass_comes_back_from_its_json(value):
    assert from_builtins(Outer, json.loads(json.dumps(to_builtins(value))), "x.json") == value


def test_a_missing_field_takes_its_default_and_an_unknown_one_is_ignored():
    values = to_builtins(OUTER)
    del values["inner"]
    assert from_builtins(Outer, {**values, "new": 1}, "x.json") == replace(OUTER, inner=None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "x.json: 'name' must be a text, got '3'"),
        ({"word": "c"}, "x.json: 'word' must be 'a' or 'b', got 'c'"),
        ({"pair": [1.0]}, "x.json: 'pair' must be a list of 2 values"),
        ({"pair": [1.0, "y"]}, "x.json: 'pair' 1 must be a number, got 'y'"),
        ({"pair": [1.0, float("nan")]}, "x.json: 'pair' 1 must be a number, got 'nan'"),
        ({"pair": [1.0, 10**400]}, "x.json: 'pair' 1 must be a number, got"),
        ({"parts": 3}, "x.json: 'parts' must be a list, each item an object, got '3'"),
        ({"parts": [{"count": 1.5}]}, "x.json: 'parts' 0: 'count' must be a whole number, got '1.5'"),
        ({"parts": [{"count": True}]}, "x.json: 'parts' 0: 'count' must be a whole number, got 'True'"),
        ({"parts": [{}]}, "x.json: 'parts' 0: 'count' is missing"),
        ({"parts": [7]}, "x.json: 'parts' 0 must be an object, got '7'"),
        ({"ratio": {"a": None}}, "x.json: 'ratio' must be a number"),
        ({"flag": "yes"}, "x.json: 'flag' must be true or false, got 'yes'"),
        ({"part": 1.5}, "x.json: 'part' must lie in [0, 1], got '1.5'"),
        ({"part": "y"}, "x.json: 'part' must be a number, got 'y'"),
        ({"inner": []}, "x.json: 'inner' must be an object, got"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_expected_and_found(change, message):
    with pytest.raises(InputError) as refusal:
        from_builtins(Outer, {**to_builtins(OUTER), **change}, "x.json")
    assert str(refusal.value).startswith(message)


def test_what_is_no_object_is_refused():
    with pytest.raises(InputError, match=r"x\.json must be an object, got 'None'"):
        from_builtins(Outer, None, "x.json")
