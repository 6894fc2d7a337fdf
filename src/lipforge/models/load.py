"""Any model by name: bundled, own architecture, RobustBench, timm, torchvision, or the user's own function."""

import hashlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn

from lipforge.errors import InputError, LipforgeError, ModelError, WeightsError, suggest
from lipforge.models.architectures import (
    EXAMPLES,
    build_architecture,
    bundled_names,
    is_architecture,
    load_bundled,
    parse_architecture,
    read_card,
)
from lipforge.models.packages import timm_model, timm_names, torchvision_model, torchvision_names
from lipforge.models.robustbench import robustbench_entries, robustbench_model
from lipforge.models.weights import Wanted, load_weights_

Kind = Literal["bundled", "architecture", "robustbench", "timm", "torchvision"]

FORMS = (
    "a bundled name, an architecture (resnet20, wrn-28-10:classes=100), robustbench:dataset/threat/name, timm:name, "
    "torchvision:name, package.module:function or path/to/file.py:function"
)
_PACKAGES: dict[str, tuple[Callable[[str, Wanted], nn.Module], Callable[[], Sequence[str]]]] = {
    "robustbench": (robustbench_model, lambda: list(robustbench_entries())),
    "timm": (timm_model, timm_names),
    "torchvision": (torchvision_model, torchvision_names),
}


def load_model(
    spec: str,
    weights: str | Path | None = None,
    *,
    weights_dir: str | Path | None = None,
    pretrained: bool = True,
    classes: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """The model that `spec` names, in eval mode: images (N, C, H, W) in [0, 1] to logits (N, K).

    `weights` is a local file ("file.pt#ema" for one of several state dicts in it) and wins over everything else. Then
    `weights_dir` is searched for the file's usual name, and the package's own download is tried. `pretrained=False`
    gives random weights that depend on `seed` only. A function of the user decides about its own weights.
    """
    if weights is not None and not pretrained:
        raise InputError(f"weights={str(weights)!r} and pretrained=False (--no-weights) exclude each other")
    if weights is not None and not str(weights):
        raise InputError("weights must name a checkpoint file, got an empty text; leave it out for the model's own")
    if classes is not None and classes < 1:
        raise InputError(f"classes must be at least 1, got {classes}")
    # Constructors draw from the global generator; it is put back, so that loading changes no one else's numbers.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _load(spec, Wanted(weights, weights_dir, pretrained, classes))
    return model.eval()


def list_models(kinds: Sequence[Kind] = ("bundled", "architecture")) -> dict[str, list[str]]:
    """Names that `load_model` takes, by kind; other packages are imported only if asked for.

    >>> "resnet20" in list_models()["architecture"]
    True
    """
    return {kind: _names(kind) for kind in kinds}


def load_function(spec: str) -> Callable[..., Any]:
    """The function that `package.module:function` or `file.py:function` names; its module is imported, and so run."""
    place, _, name = spec.rpartition(":")
    if not place:
        raise InputError(f"a function is given as path/to/file.py:function or package.module:function, got {spec!r}")
    module = _import(place)
    function: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(function):
        found = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"{place} has no function {name!r}{suggest(name, found)}")
    return function


def code_digest(function: Callable[..., Any]) -> str:
    """SHA-256 of the file that a function is written in, by which a run tells it from one that was changed."""
    return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()


def build_from_function(spec: str, classes: int | None = None) -> nn.Module:
    """The model that `package.module:function` or `file.py:function` returns; it gets `classes` if that is given."""
    function = load_function(spec)
    signature = inspect.signature(function)
    taken = [key for key in ("classes", "num_classes") if key in signature.parameters]
    if classes is not None and not taken:
        raise InputError(f"classes={classes} was asked for, but {spec} has no argument 'classes' or 'num_classes'")
    arguments = {} if classes is None else {taken[0]: classes}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise InputError(f"{spec} must work without arguments, but Python says: {error}") from None
    try:
        model = function(**arguments)
    except (LipforgeError, MemoryError):
        raise  # these say what is wrong already
    except Exception as error:
        raise _raised(spec, error) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{spec} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _raised(place: str, error: Exception) -> ModelError:
    """The error for a model's own code that raised one."""
    return ModelError(f"{place} raised {type(error).__name__}: {error} (--debug shows where)")


def _load(spec: str, wanted: Wanted) -> nn.Module:
    scheme, _, name = spec.partition(":")
    if scheme in _PACKAGES:
        return _PACKAGES[scheme][0](name, wanted)
    if spec in bundled_names():
        found = read_card(spec).arguments.get("classes", 10)
        if wanted.classes not in (None, found):
            raise InputError(f"the bundled model {spec!r} has {found} classes, not {wanted.classes}")
        model = load_bundled(spec, pretrained=wanted.pretrained and wanted.weights is None)
    elif is_architecture(spec):
        return _architecture(spec, wanted)
    elif name and "=" not in name:
        model = build_from_function(spec, wanted.classes)
    else:
        raise InputError(f"no model {spec!r}: expected {FORMS}{suggest(scheme, [*bundled_names(), *EXAMPLES])}")
    if wanted.weights_dir is not None:
        raise InputError(f"weights_dir (--weights-dir) does not apply to {spec!r}; give a file (--weights)")
    if wanted.weights is not None:
        load_weights_(model, wanted.weights)
    return model


def _architecture(spec: str, wanted: Wanted) -> nn.Module:
    name, arguments = parse_architecture(spec)
    if wanted.classes is not None and arguments.setdefault("classes", wanted.classes) != wanted.classes:
        raise InputError(f"{spec!r} and classes={wanted.classes} contradict each other")
    model = build_architecture(name, arguments)
    weights = wanted.local([f"{name}{suffix}" for suffix in (".safetensors", ".pt", ".pth")])
    if weights is not None:
        load_weights_(model, weights)
    elif wanted.pretrained:
        raise WeightsError(
            f"{name} is an architecture without weights of its own"
            f"{f' in {wanted.weights_dir}' if wanted.weights_dir else ''}: "
            "give a file (--weights) or use random weights (--no-weights, pretrained=False)"
        )
    return model


def _names(kind: str) -> list[str]:
    if kind in ("bundled", "architecture"):
        return bundled_names() if kind == "bundled" else list(EXAMPLES)
    if kind not in _PACKAGES:
        raise InputError(f"no kind of model {kind!r}; expected one of bundled, architecture, {', '.join(_PACKAGES)}")
    return [f"{kind}:{name}" for name in _PACKAGES[kind][1]()]


def _import(place: str) -> ModuleType:
    file = Path(place).expanduser().resolve() if place.endswith(".py") else None
    # Imports find the user's neighbouring files, as `python file.py` would.
    directory = str(Path.cwd() if file is None else file.parent)
    sys.path.insert(0, directory)
    try:
        return importlib.import_module(place) if file is None else _import_file(file)
    except (ImportError, SyntaxError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == place.split(".")[0]
        hint = " (a file is given as path/to/file.py:function)" if missing else ""
        raise InputError(f"cannot import {place}: {error}{hint}") from error
    except (LipforgeError, MemoryError):
        raise
    except Exception as error:
        raise _raised(place, error) from error
    finally:
        sys.path.remove(directory)


def _import_file(path: Path) -> ModuleType:
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
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
