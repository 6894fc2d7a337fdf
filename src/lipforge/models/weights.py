"""Checkpoint files, read without ever running what is in them, and their tensors put into a model: all or none."""

import pickle
import re
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from lipforge.errors import WeightsError, first_line
from lipforge.records import most_unpacked

StateDict = Mapping[str, Tensor]
Adapt = Callable[[dict[str, Tensor]], Mapping[str, Tensor]]

_NOT_CHECKPOINTS = [
    (rb"\s*<(!doctype|html|head|\?xml)", "a web page, not a checkpoint: the download gave an error or a login page"),
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself: run 'git lfs pull'"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf", "a compressed archive: unpack it first"),
]
# What DataParallel, torch.compile, averaging and normalising wrappers put in front of a name.
_PREFIXES = re.compile(r"^((module|model|_orig_mod|net|ema|ema_model)\.)+")
# The constructor of the model knows these constants, and old checkpoints lack them.
_CONSTANTS = ("mean", "std", "mu", "sigma", "num_batches_tracked")
_LEFTOVERS = ("n_averaged",)


@dataclass(frozen=True)
class Wanted:
    """What `load_model` was asked for: a file, a directory to search, trained weights at all, how many classes."""

    weights: str | Path | None = None
    weights_dir: str | Path | None = None
    pretrained: bool = True
    classes: int | None = None

    def local(self, names: list[str]) -> str | Path | None:
        """`weights`, else the first of these files in `weights_dir`; None with random weights."""
        return self.weights or (find_weights(self.weights_dir, names) if self.pretrained else None)


def load_weights_(
    model: nn.Module, weights: str | Path, *, adapt: Adapt | None = None, ignore: tuple[str, ...] = ()
) -> None:
    """Put the weights of a safetensors or `torch.save` file into `model`: every tensor has its place, or none changes.

    "file.pt#ema" names one of several state dicts in it. Wrappers such as {"state_dict": ...} and prefixes such as
    "module." on either side do not matter. `adapt` translates an older layout where the names do not fit as they are;
    names that end in one of `ignore` may be left over.
    """
    path, _, key = str(weights).rpartition("#")
    if not path or Path(weights).is_file():  # a file may really have a "#" in its name
        path, key = str(weights), ""
    found = state_dicts(read_checkpoint(path))
    if key:
        found = {name: state for name, state in found.items() if name == key}
    if not found:
        raise WeightsError(f"{path} holds no state dict{f' under {key!r}' if key else ''}: expected names and tensors")
    matches = {name: _best_match(model, state, adapt, ignore) for name, state in found.items()}
    fitting = {name: match for name, match in matches.items() if not match.distance}
    if not fitting:
        closest = min(matches.values(), key=lambda match: match.distance)
        raise WeightsError(f"{path} does not fit the model: {closest}")
    chosen, *others = fitting.values()
    if not all(_equal(chosen.tensors, other.tensors) for other in others):
        keys = list(fitting)
        raise WeightsError(f"{path} holds different weights that fit: {', '.join(keys)}; name one: {path}#{keys[-1]}")
    _check_values(model, chosen.tensors, path)
    model.load_state_dict(chosen.tensors, strict=False)


@dataclass(frozen=True)
class Match:
    """Which tensor of a checkpoint goes where, and what does not fit."""

    tensors: dict[str, Tensor] = field(repr=False)
    missing: list[str]
    unexpected: list[str]
    wrong_shape: list[str]
    hint: str = ""

    @property
    def distance(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.wrong_shape)

    def __str__(self) -> str:
        parts = [("missing", self.missing), ("unexpected", self.unexpected), ("of another shape", self.wrong_shape)]
        told = [f"{len(names)} {what} ({_examples(names)})" for what, names in parts if names]
        return f"{len(self.tensors)} tensors match, {', '.join(told)}{self.hint}"


def match_names(model: nn.Module, state: StateDict, *, ignore: tuple[str, ...] = ()) -> Match:
    """Pair each tensor of `state` with one of the model, by name without wrapping prefixes."""
    own = model.state_dict()
    if _collides(own) or _collides(state):
        places, given = {name: name for name in own}, dict(state)
    else:
        places = {strip_prefixes(name): name for name in own}
        given = {strip_prefixes(name): tensor for name, tensor in state.items()}
    parameters = {name for name, _ in model.named_parameters()}
    needed = {name for name in own if name in parameters or name.split(".")[-1] not in _CONSTANTS}
    missing = [name for short, name in places.items() if short not in given and name in needed]
    unexpected = [name for name in given if name not in places and not name.endswith((*_LEFTOVERS, *ignore))]
    tensors = {places[short]: tensor for short, tensor in given.items() if short in places}
    wrong = [name for name, tensor in tensors.items() if tensor.shape != own[name].shape]
    told = [f"{name}: file {_shape(tensors[name])}, model {_shape(own[name])}" for name in wrong]
    hint = _class_hint(wrong, tensors, own) if not missing and not unexpected else ""
    fitting = {name: tensor for name, tensor in tensors.items() if name not in wrong}
    return Match(fitting, missing, unexpected, told, hint)


def strip_prefixes(name: str) -> str:
    """A parameter's name without the prefixes of wrappers.

    >>> strip_prefixes("module.model.conv1.weight")
    'conv1.weight'
    """
    return _PREFIXES.sub("", name)


def find_weights(weights_dir: str | Path | None, names: list[str]) -> Path | None:
    """The first of these files that exists in the directory; a directory that does not exist is an error."""
    if weights_dir is None:
        return None
    if not Path(weights_dir).is_dir():
        raise WeightsError(f"weights_dir {weights_dir} is not a directory")
    return next((path for name in names if (path := Path(weights_dir) / name).is_file()), None)


def _check_values(model: nn.Module, tensors: StateDict, path: str) -> None:
    own = model.state_dict()
    whole = [name for name, tensor in tensors.items() if own[name].is_floating_point() > tensor.is_floating_point()]
    if whole:
        found = str(tensors[whole[0]].dtype).removeprefix("torch.")
        raise WeightsError(
            f"{path} holds whole numbers ({found}) where the model has floats: {_examples(whole)}; "
            "quantised weights must be turned into floats first"
        )
    broken = [name for name, tensor in tensors.items() if not bool(torch.isfinite(tensor).all())]
    if broken:
        raise WeightsError(f"{path} holds values that are not finite: {_examples(broken)}; training must have diverged")


def _best_match(model: nn.Module, state: StateDict, adapt: Adapt | None, ignore: tuple[str, ...]) -> Match:
    direct = match_names(model, state, ignore=ignore)
    if not direct.distance or adapt is None or _collides(state):
        return direct
    try:
        adapted = adapt({strip_prefixes(name): tensor for name, tensor in state.items()})
    except (KeyError, AttributeError, IndexError, RuntimeError, ValueError):
        # The translation is another package's, made for its own files; this one is simply not such a file.
        return direct
    sizes, given = (Counter(tensor.numel() for tensor in tensors.values()) for tensors in (adapted, state))
    if sizes - given:  # timm makes tensors of new sizes to fit another model's positions and patches
        return direct
    return min(direct, match_names(model, adapted, ignore=ignore), key=lambda match: match.distance)


def _collides(state: StateDict) -> bool:
    return len({strip_prefixes(name) for name in state}) < len(state)


def _equal(left: StateDict, right: StateDict) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _class_hint(wrong: list[str], tensors: StateDict, own: StateDict) -> str:
    """A word on the number of classes, where nothing but the head's first dimension differs."""
    shapes = [(tensors[name].shape, own[name].shape) for name in wrong]
    if not 0 < len(wrong) <= 2 or any(not file or not model or file[1:] != model[1:] for file, model in shapes):
        return ""
    file, model = tensors[wrong[0]].shape[0], own[wrong[0]].shape[0]
    return f"; the checkpoint has {file} classes, the model {model}: build it with classes={file}"


def _examples(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _shape(tensor: Tensor) -> str:
    return "x".join(str(size) for size in tensor.shape) or "scalar"


def read_checkpoint(path: str | Path) -> Any:
    """What the file holds, tensors on the CPU; a pickle that asks for more than tensors and containers is refused."""
    path = Path(path)
    start = _start_of(path)
    for pattern, complaint in _NOT_CHECKPOINTS:
        if re.match(pattern, start, flags=re.IGNORECASE):
            raise WeightsError(f"{path} is {complaint}")
    if start[8:9] == b"{":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise WeightsError(f"{path} is a damaged or cut short safetensors file ({error})") from None
    if start.startswith(b"PK") and not zipfile.is_zipfile(path):
        raise WeightsError(f"{path} is cut short ({path.stat().st_size:,} bytes): download or copy it again")
    if start.startswith(b"PK"):
        _check_unpacked(path)
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


def _check_unpacked(path: Path) -> None:
    limit = most_unpacked(path.stat().st_size)
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except Exception as error:  # a broken directory raises whatever its bytes lead to
        raise WeightsError(f"{path} cannot be read as a checkpoint: {first_line(error)}") from None
    if size > limit:
        raise WeightsError(f"{path} unpacks to more than {limit >> 20} MB; torch.save does not pack what it writes")


def _read_torch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch wants to hear of every pickle that is not its own
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises whatever its broken bytes lead to
        wanted = re.search(r"GLOBAL ([\w.]+)", str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if wanted is None:
            raise WeightsError(f"{path} cannot be read as a checkpoint: {first_line(error)}") from None
        raise WeightsError(
            f"{path} was refused: to load it, Python would have to call {wanted[1]}, and a checkpoint must not run "
            "code. If you trust its origin, load it there and save model.state_dict() alone"
        ) from None
