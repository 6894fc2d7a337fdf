"""Options that several commands share, spelled once."""

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer

from lipforge.cli.output import note
from lipforge.data import DataSet, FolderOptions, list_data, load_data
from lipforge.errors import InputError
from lipforge.forge.masks import MASKS
from lipforge.forge.sites import RULES
from lipforge.models import list_models
from lipforge.ranks import is_first, own_device
from lipforge.runs import RunDir


def _complete(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """What the shell offers after TAB: the names that begin with what is there already."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


_complete_mask = _complete(lambda: [name.replace("_", "-") for name in MASKS])
_complete_model = _complete(lambda: [name for names in list_models().values() for name in names])
_complete_data = _complete(lambda: [entry.name.removesuffix("PATH") for entry in list_data()])
_complete_rule = _complete(lambda: list(RULES))

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        autocompletion=_complete_model,
        help="A bundled name, an architecture (wrn-28-10), robustbench:DATASET/THREAT/NAME, timm:NAME, "
        "torchvision:NAME, package.module:function or path/to/file.py:function.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Weights = Annotated[str | None, typer.Option(help="A checkpoint file: safetensors, or what torch.save wrote.")]
WeightsDir = Annotated[str | None, typer.Option(help="A folder of checkpoints to search before any download.")]
NoWeights = Annotated[bool, typer.Option("--no-weights", help="The architecture with random weights.")]
Mask = Annotated[
    str,
    typer.Option(
        autocompletion=_complete_mask,
        help="step, piecewise:d=0.5, smooth:a=20,b=10,argument=relative or mean-centred.",
    ),
]
Classes = Annotated[int | None, typer.Option(help="Build the model for this many classes.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        "--rule",
        autocompletion=_complete_rule,
        help="Which layers are sites, repeatable: residual_convs, mlp_linears (both by default), depthwise_convs, "
        "shortcut_convs, attention_projections, gate_layers, plain_layers, activations, name:GLOB.",
    ),
]
Include = Annotated[list[str] | None, typer.Option(help="Keep only sites that match this glob; repeatable.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Leave out sites that match this glob; repeatable.")]
Data = Annotated[
    str,
    typer.Option(
        autocompletion=_complete_data,
        help="cifar10, cifar10:train, cifar100, mnist, fashion-mnist, cifar10-sample, folder:PATH, npz:PATH, "
        "npy:IMAGES,LABELS, idx:PATH or hub:PATH.",
    ),
]
Root = Annotated[str | None, typer.Option(help="A folder where you keep published data files (or LIPFORGE_DATA).")]
Limit = Annotated[int | None, typer.Option(help="At most this many images.")]
Seed = Annotated[int | None, typer.Option(help="Take random images by this seed instead of the first ones.")]
BatchSize = Annotated[int, typer.Option(help="Images per forward pass.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.")]
Resize = Annotated[int, typer.Option(help="Image folders: the shorter side becomes this; 0 leaves it.")]
Crop = Annotated[int, typer.Option(help="Image folders: centre crop of this size; 0 leaves it.")]
Interpolation = Annotated[str, typer.Option(help="Image folders: bicubic or bilinear.")]
OnError = Annotated[str, typer.Option(help="Image folders: raise at an unreadable image, or skip and count it.")]
Workers = Annotated[int | None, typer.Option(help="Image folders: decoding processes.")]
Files = Annotated[str | None, typer.Option(help="Image folders: a text file that lists the images to read.")]


def folder_options(
    resize: int, crop: int, interpolation: str, on_error: str, workers: int | None, files: str | None
) -> FolderOptions:
    """The image-folder options of the command line as the library takes them; it checks the words itself."""
    return FolderOptions(resize or None, crop or None, interpolation, on_error, workers, files)  # type: ignore[arg-type]


def open_data(spec: str, limit: int | None, seed: int | None, root: str | None, folder: FolderOptions) -> DataSet:
    """The data set of a command; what is said of image folders applies to nothing else."""
    return load_data(spec, limit=limit, seed=seed, root=root, folder=folder if spec.startswith("folder:") else None)


def pick_device(name: str) -> torch.device:
    """The device of that name for this process, checked; `auto` prefers an accelerator."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = own_device(torch.device(name))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device must be one that torch can use here, got {name!r}: {str(error)[:100]}") from None
    return device


def open_run(path: str | None) -> RunDir | None:
    """The run directory of a command, which keeps the command; None where none was asked for."""
    if path is None:
        return None
    run = RunDir.open(path, command=command_line())
    if is_first() and (shards := run.shards()):
        note(f"finished shards in {path}: {shards}; those of the same work are taken over")
    return run


def command_line() -> str:
    """The command as it was given."""
    return shlex.join(["lipforge", *sys.argv[1:]])


def check_out(out: str) -> None:
    """Raise if a file cannot be written there: before the work, not after it."""
    path = Path(out)
    folder = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if path.is_dir():
        raise InputError(f"--out must name a file, got the folder {out}")
    if not folder.is_dir():
        raise InputError(f"--out {out} cannot be written: {folder} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {out} cannot be written: no permission to write in {folder}")
