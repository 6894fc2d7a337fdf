"""What a resumed certification must agree on, so that one run never mixes the shards of two classifiers."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from lipforge.certify.source import plain_bytes
from lipforge.errors import InputError
from lipforge.types import Classifier

ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def model_of(classifier: Classifier, identity: Mapping[str, Any] | None, in_run: bool) -> dict[str, Any]:
    """A module by the digest of its tensors and of its printed form, which shows masks, ratios and modes.

    Buffers that are not saved count too: the thresholds of forged functions are among them. A function has only its
    name, so inside a run its caller has to say what it is.
    """
    if isinstance(classifier, nn.Module):
        digest = hashlib.sha256()
        tensors = sorted([*classifier.named_parameters(), *classifier.named_buffers()], key=lambda named: named[0])
        for name, tensor in tensors:
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(plain_bytes(tensor))
        printed = hashlib.sha256(ADDRESS.sub("", repr(classifier)).encode()).hexdigest()
        about = {"class": type(classifier).__name__, "tensors": digest.hexdigest(), "printed": printed}
    elif in_run and not identity:
        raise InputError("identity must say what a classifier that is no module is, such as {'model': 'mine-v2'}")
    else:
        about = {"function": getattr(classifier, "__qualname__", type(classifier).__qualname__)}
    return {**about, **(identity or {})}


def slug(text: str) -> str:
    """`text` as part of a file name; a digest where characters had to go."""
    plain = re.sub(r"[^A-Za-z0-9._=+-]+", "-", text).strip("-.") or "x"
    return plain if plain == text else f"{plain[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
