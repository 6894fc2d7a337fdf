"""Checking JSON against the schemas in docs/schemas."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from lipforge.results import RESULTS

SCHEMAS = Path(__file__).parent.parent / "docs" / "schemas"


def problems(value: Any, name: str) -> list[str]:
    """What is wrong with a JSON value by the schema docs/schemas/<name>.json; empty if nothing is."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)]


def results_of(text: str) -> list[dict[str, Any]]:
    """The results that a command printed under --json; the one object, and each result, must fit its schema."""
    printed = json.loads(text)
    assert problems(printed, "envelope") == []
    for one in printed["results"]:
        assert one["kind"] not in RESULTS or problems(one, one["kind"]) == []
    return list(printed["results"])


def result_of(text: str) -> dict[str, Any]:
    """The only one of `results_of`."""
    (found,) = results_of(text)
    return found
