"""Every error a user can cause, so that `except LipforgeError` catches all of them and nothing else. A message names
the argument, what was expected, what was found and the way out."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

NO_MEMORY = re.compile(
    r"not enough memory|allocate memory|out of memory|_ALLOC_FAILED|could not create a primitive(?! descriptor)"
    r"|failed to map segment",
    re.IGNORECASE,
)


class LipforgeError(Exception):
    """The base of all errors that lipforge raises on purpose."""


class InputError(LipforgeError, ValueError):
    """An argument, an image or a label is not what the function takes."""


class ModelError(LipforgeError):
    """The model cannot be used as it is: in train mode, not callable on the images, NaN logits."""


class SiteError(LipforgeError, ValueError):
    """A site or a rule for finding sites does not exist or does not fit the model."""


class CalibrationError(LipforgeError):
    """The calibration pass could not produce a bound for every site."""


class RecipeError(LipforgeError, ValueError):
    """A recipe file is damaged or belongs to another model."""


class WeightsError(LipforgeError):
    """A checkpoint is damaged, unsafe to load, or belongs to another architecture."""


class DataError(LipforgeError):
    """A data set is missing, damaged or not in the expected layout."""


class RunError(LipforgeError):
    """A run directory or a training directory does not match what was asked for."""


class WriteError(LipforgeError, OSError):
    """A file cannot be written: the disk is full, or its folder takes no files."""


class BoundError(LipforgeError):
    """A certificate and an attack contradict each other."""


class AttackError(LipforgeError):
    """An attack of another tool, or of the user, raised an error; the message names it."""


class MemoryLimitError(LipforgeError, MemoryError):
    """Memory does not suffice for a single image."""


class TrainingError(LipforgeError):
    """Training cannot go on: the loss diverged, or the model keeps collapsing."""


class ExportError(LipforgeError):
    """A model cannot be exported as asked, the file differs from it, or a file cannot be read."""


class MissingExtraError(LipforgeError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


def import_extra(module: str, extra: str) -> Any:
    """An optional module; where its package is not installed, the error names the extra that brings it."""
    try:
        return import_module(module)
    except ImportError:
        raise missing_extra(module.partition(".")[0], extra) from None


def missing_extra(package: str, extra: str) -> MissingExtraError:
    """The error for a missing optional package, with the command that installs it."""
    return MissingExtraError(f"this needs the package '{package}': pip install 'lipforge[{extra}]'")


def first_line(error: Exception) -> str:
    """What an error says in its first line, or its type where it says nothing. What torch and NumPy say of a pickle
    that they refused is left out: they advise to load it all the same.

    >>> first_line(ValueError("Object arrays cannot be loaded when allow_pickle=False"))
    'it is damaged, or holds a pickle, and lipforge loads none: a data file must not run code'
    """
    if re.search("weights_only|allow_pickle", str(error)):
        return "it is damaged, or holds a pickle, and lipforge loads none: a data file must not run code"
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def lacks_memory(error: BaseException) -> bool:
    """Whether memory ran out, in the words of Python, torch, cuBLAS, oneDNN and the dynamic linker; an error
    may have come from one that says so.

    >>> lacks_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000 bytes"))
    True
    """
    if isinstance(error, MemoryError) or NO_MEMORY.search(str(error)):
        return True
    return error.__cause__ is not None and lacks_memory(error.__cause__)


def suggest(name: str, known: Iterable[str], *, count: int = 3) -> str:
    """The end of an error message: the nearest known names, or nothing where none is near.

    >>> suggest("resnet2O", ["resnet20", "vit-tiny"])
    "; did you mean 'resnet20'?"
    >>> suggest("xyz", ["resnet20"])
    ''
    """
    spelled = {other.lower(): other for other in known}
    near = get_close_matches(name.lower(), spelled, n=count)
    return f"; did you mean {' or '.join(repr(spelled[other]) for other in near)}?" if near else ""
