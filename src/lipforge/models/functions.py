"""Models from the user's own code: `package.module:function` or `path/to/file.py:function`."""

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from lipforge.errors import InputError, ModelError
from lipforge.models.names import suggest


def build_from_function(spec: str, classes: int | None = None) -> nn.Module:
    """The module that the named function (or class) returns when it is called without arguments.

    `classes` is handed on if the function takes an argument of that name (or `num_classes`).
    """
    place, _, name = spec.rpartition(":")
    function = _find(_import(place), name, place)
    arguments = _class_argument(function, classes, spec)
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise InputError(f"{spec} must work without arguments, but Python says: {error}") from None
    model = function(**arguments)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _import(place: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(Path(place))
        with _search_path(Path.cwd()):
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        hint = " (a file is given as path/to/file.py:function)" if error.name == place.split(".")[0] else ""
        raise InputError(f"cannot import {place}: {error}{hint}") from error
    except (ImportError, SyntaxError, OSError) as error:
        raise InputError(f"cannot import {place}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise InputError(f"no file {path}")
    # Known to sys.modules, and without dots in the name, so that classes are found again when a model is unpickled.
    name = "lipforge_file_" + re.sub(r"\W", "_", str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # a .py file always has a spec and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _search_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextlib.contextmanager
def _search_path(directory: Path) -> Iterator[None]:
    """Let imports find the user's neighbouring files, as `python file.py` would."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))


def _find(module: ModuleType, name: str, place: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{place} has no function {name!r}{suggest(name, found)}")
    return function  # type: ignore[no-any-return]  # getattr of a module is Any; callable() was just checked


def _class_argument(function: Callable[..., Any], classes: int | None, spec: str) -> dict[str, int]:
    if classes is None:
        return {}
    taken = inspect.signature(function).parameters
    for name in ("classes", "num_classes"):
        if name in taken:
            return {name: classes}
    raise InputError(f"classes={classes} was asked for, but {spec} has no argument 'classes' or 'num_classes'")
