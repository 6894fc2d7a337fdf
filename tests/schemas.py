"""Checking JSON against the schemas in docs/schemas: as much of JSON Schema as they use, and an error for the rest."""

import json
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parent.parent / "docs" / "schemas"
TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "null": (type(None),),
    "boolean": (bool,),
}
IGNORED = {"$schema", "$defs", "title", "description"}


def problems(value: Any, name: str) -> list[str]:
    """What is wrong with a JSON value by the schema docs/schemas/<name>.json; empty if nothing is."""
    whole = json.loads((SCHEMAS / f"{name}.json").read_text())
    return _problems(value, whole, whole, "$")


def _problems(value: Any, schema: dict[str, Any], whole: dict[str, Any], at: str) -> list[str]:
    if "$ref" in schema:
        return _problems(value, whole["$defs"][schema["$ref"].removeprefix("#/$defs/")], whole, at)
    found: list[str] = []
    for rule, wanted in schema.items():
        if rule in IGNORED:
            continue
        if rule == "properties":
            for key in wanted.keys() & value.keys():
                found += _problems(value[key], wanted[key], whole, f"{at}.{key}")
        elif rule == "items":
            for number, item in enumerate(value):
                found += _problems(item, wanted, whole, f"{at}[{number}]")
        elif not _holds(rule, wanted, value, schema):
            found.append(f"{at}: {rule} {wanted!r}, got {value!r}")
            if rule == "type":
                break
    return found


def _holds(rule: str, wanted: Any, value: Any, schema: dict[str, Any]) -> bool:
    match rule:
        case "type":
            return isinstance(value, TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
        case "const":
            return bool(value == wanted)
        case "enum":
            return value in wanted
        case "required":
            return set(wanted) <= value.keys()
        case "additionalProperties":
            return wanted or value.keys() <= schema["properties"].keys()
        case "minimum":
            return bool(value >= wanted)
        case "maximum":
            return bool(value <= wanted)
        case "exclusiveMinimum":
            return bool(value > wanted)
        case "minItems":
            return len(value) >= wanted
        case "maxItems":
            return len(value) <= wanted
    raise NotImplementedError(f"the schema uses {rule!r}, which this check does not know")
