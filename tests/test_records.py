import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from lipforge.errors import InputError
from lipforge.records import from_builtins, read_json, to_builtins, write_json, write_whole


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


def test_builtins_stay():
    assert to_builtins({"a": [1, None, "x", True]}) == {"a": [1, None, "x", True]}


@dataclass(frozen=True)
class Inner:
    n: int


@dataclass(frozen=True)
class Fields:
    n: int
    x: float
    t: str
    pair: tuple[float, float]
    objects: tuple[Inner, ...]
    words: tuple[str, ...]
    inner: Inner
    choice: Literal["a", "b"] = "a"
    passed: bool | None = None
    ratio: float | dict[str, float] = 0.0


GOOD = Fields(3, 0.5, "a", (0.0, 1.0), (Inner(1),), ("a",), Inner(2), "b", True, {"layer1.*": 0.5})


def test_a_dataclass_comes_back_with_tuples_objects_and_defaults():
    values = to_builtins(GOOD)
    assert from_builtins(Fields, values, "f.json") == GOOD
    del values["ratio"]
    assert from_builtins(Fields, values | {"unknown": 1}, "f.json").ratio == 0.0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x", "0.5", "'x' must be a number, got '0.5'"),
        ("x", True, "'x' must be a number"),
        ("x", float("nan"), "'x' must be a number"),
        ("x", 10**400, "'x' must be a number"),
        ("n", 1.5, "'n' must be a whole number, got '1.5'"),
        ("n", float("inf"), "'n' must be a whole number"),
        ("t", 1, "'t' must be a text"),
        ("pair", [1], "'pair' must be a list of 2 values"),
        ("pair", [1, None], "'pair' 1 must be a number, got 'None'"),
        ("objects", [1], "'objects' 0 must be an object"),
        ("objects", [{}], "'objects' 0: 'n' is missing"),
        ("words", "ab", "'words' must be a list, each item a text"),
        ("inner", [], "'inner' must be an object"),
        ("choice", "c", "'choice' must be 'a' or 'b', got 'c'"),
        ("passed", 1, "'passed' must be true or false"),
        ("ratio", {"a": "b"}, "'ratio' must be a number"),
    ],
)
def test_a_field_of_the_wrong_kind_is_named_with_its_file(name, value, expected):
    with pytest.raises(InputError) as caught:
        from_builtins(Fields, to_builtins(GOOD) | {name: value}, "f.json")
    assert str(caught.value).startswith(f"f.json: {expected}")


def test_a_missing_field_is_named():
    values = to_builtins(GOOD)
    del values["x"]
    with pytest.raises(InputError, match=r"f\.json: 'x' is missing"):
        from_builtins(Fields, values, "f.json")
