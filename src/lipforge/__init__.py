"""lipforge: forge a trained image classifier in one pass, and find out whether it really got harder to fool."""

import ast
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# Each name is imported when it is first used: torch takes seconds, which `lipforge --help` should not.
_MODULES = {
    alias.name: str(node.module)
    for node in ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__all__ = sorted(_MODULES)  # the names of __init__.pyi


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(f"{__name__}.records").lipforge_version()
    if name not in _MODULES:
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module 'lipforge' has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")  # lipforge.attacks after a mere `import lipforge`
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
