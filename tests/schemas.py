"""Checking JSON against the schemas in docs/schemas."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).parent.parent / "docs" / "schemas"


def problems(value: Any, name: str) -> list[str]:
    """What is wrong with a JSON value by the schema docs/schemas/<name>.json; empty if nothing is."""
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(value)]
