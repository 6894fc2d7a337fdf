"""lipforge: forge a trained image classifier in one pass, and find out whether it really got harder to fool."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# Each name is imported when it is first used: torch takes seconds, which `lipforge --help` should not.
_MODULES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted(_MODULES)  # the names of __init__.pyi


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'lipforge' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
