"""Checkpoint files, read without ever running what is in them."""

import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from lipforge.errors import WeightsError

StateDict = Mapping[str, Tensor]

_NOT_CHECKPOINTS = [
    (rb"\s*<(!doctype|html|head|\?xml)", "a web page, not a checkpoint: the download gave an error or a login page"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf", "a compressed archive: unpack it first"),
]


def read_checkpoint(path: str | Path) -> Any:
    """What the file holds: a state dict or a nest of dicts with one inside, all tensors on the CPU.

    Safetensors files and files of `torch.save` are read; of the latter only tensors and plain containers
    (`weights_only=True`). A file that asks for anything else is refused, and nothing of it is run.
    """
    path = Path(path)
    start = _start_of(path)
    for pattern, complaint in _NOT_CHECKPOINTS:
        if re.match(pattern, start, flags=re.IGNORECASE):
            raise WeightsError(f"{path} is {complaint}")
    if start[8:9] == b"{":
        return _read_safetensors(path)
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise WeightsError(f"{path} is cut short ({path.stat().st_size:,} bytes): download or copy it again")
    if not start.startswith((b"PK", b"\x80")):
        raise WeightsError(f"{path} is neither a safetensors file nor one of torch.save (it starts with {start[:8]!r})")
    return _read_torch(path)


def state_dicts(checkpoint: Any, depth: int = 4) -> dict[str, StateDict]:
    """Every state dict in a checkpoint by the key that leads to it ("" for the whole file).

    >>> list(state_dicts({"epoch": 3, "net": {"fc.weight": torch.zeros(1)}, "optimizer": {"state": {}}}))
    ['net']
    """
    if not isinstance(checkpoint, Mapping) or not checkpoint or depth == 0:
        return {}
    # Optimizers number their state with integers; whatever is below is not a model.
    named = {key: value for key, value in checkpoint.items() if isinstance(key, str)}
    tensors = {key: value for key, value in named.items() if isinstance(value, Tensor)}
    found: dict[str, StateDict] = {"": tensors} if tensors else {}
    for key, value in named.items():
        for inner, state in state_dicts(value, depth - 1).items():
            found[f"{key}/{inner}" if inner else key] = state
    return found


def _start_of(path: Path) -> bytes:
    if path.is_dir():
        raise WeightsError(f"{path} is a directory; name the checkpoint file in it")
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except FileNotFoundError:
        raise WeightsError(f"no checkpoint file {path}") from None
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {error.strerror}") from None
    if not start:
        raise WeightsError(f"{path} is empty: download or copy it again")
    return start


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise WeightsError(f"{path} is a damaged or cut short safetensors file ({error})") from None


def _read_torch(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if wanted := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise WeightsError(
                f"{path} was refused: to load it, Python would have to call {wanted[1]}, and a checkpoint must not run "
                "code. If you trust its origin, load it there and save model.state_dict() alone"
            ) from None
        raise WeightsError(f"{path} cannot be read as a checkpoint: {_first_line(error)}") from None
    except Exception as error:  # a damaged pickle raises whatever its broken bytes lead to
        raise WeightsError(f"{path} cannot be read as a checkpoint: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no details"])[0]
