"""Write docs/schemas/*.json, the JSON Schema of every result, from the dataclasses: `python tools/schemas.py`."""

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from lipforge.results import FORMAT, RESULTS

FOLDER = Path(__file__).parent.parent / "docs" / "schemas"
SIMPLE = {str: "string", bool: "boolean", int: "integer", float: "number", types.NoneType: "null"}


def schema_of(kind: type[Any]) -> dict[str, Any]:
    """The schema of what `lipforge.results.record` makes of a result of this kind."""
    definitions: dict[str, Any] = {}
    own = _object(kind, definitions)
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": kind.kind}
    properties = {"kind": {"const": kind.kind}, "format": {"const": FORMAT}, **own["properties"]}
    defined = {"$defs": definitions} if definitions else {}
    return {**about, **own, "required": list(properties), "properties": properties, **defined}


def _object(kind: type[Any], definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    properties = {field.name: _schema(hints[field.name], definitions) for field in dataclasses.fields(kind)}
    return {
        "description": " ".join((kind.__doc__ or "").split()),
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        kind = typing.cast(type[Any], hint)
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is Annotated:
        low, high = arguments[1]
        return {**_schema(arguments[0], definitions), "minimum": low, "maximum": high}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_schema(one, definitions) for one in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        items = [_schema(one, definitions) for one in arguments]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    return {"type": SIMPLE[hint]}


ENVELOPE = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "envelope",
    "description": "What every command prints under --json: its kind is the command, such as 'evaluate' or 'data "
    "list', or 'error'. Each result says its own kind. A command may add further fields, such as 'wrote'.",
    "type": "object",
    "required": ["kind", "format", "lipforge", "results"],
    "properties": {
        "kind": {"type": "string"},
        "format": {"const": FORMAT},
        "lipforge": {"type": "string"},
        "results": {
            "type": "array",
            "items": {"type": "object", "required": ["kind"], "properties": {"kind": {"type": "string"}}},
        },
        "error": {
            "type": "object",
            "additionalProperties": False,
            "required": ["message", "exit_code", "type"],
            "properties": {
                "message": {"type": "string"},
                "exit_code": {"type": "integer"},
                "type": {"type": "string"},
            },
        },
    },
    "if": {"properties": {"kind": {"const": "error"}}},
    "then": {"required": ["error"], "properties": {"results": {"maxItems": 0}}},
    "else": {"properties": {"error": False}},
}


def texts() -> dict[str, str]:
    """Every schema as it stands in its file, by name."""
    schemas = {name: schema_of(kind) for name, kind in RESULTS.items()} | {"envelope": ENVELOPE}
    return {name: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for name, schema in schemas.items()}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / f"{name}.json").write_text(text)
