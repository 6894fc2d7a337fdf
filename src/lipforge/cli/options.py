"""Options that several commands share, in dataclasses that `command` puts into a command's signature."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from importlib import import_module
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast, get_args, get_type_hints

from typer import Argument, Exit, Option
from typer.models import OptionInfo

import lipforge as lf
from lipforge.cli.output import note
from lipforge.cli.processes import Processes, in_processes
from lipforge.errors import InputError
from lipforge.ranks import Rank, is_first, is_helper, own_device, process_group
from lipforge.text import ratio_text
from lipforge.tracking import log_to
from lipforge.types import Norm, Threat, parse_number

if TYPE_CHECKING:  # torch takes seconds to import, and help and wrong use do not need it
    import torch
    from torch import nn

    from lipforge.data import DataSet

Command = Callable[..., None]

EPS = "8/255"

_effective: ContextVar[dict[str, Any]] = ContextVar("effective")
"""The options of the command that runs, by the names that a file for --config uses."""

VIEWS = ("plain", "forged", "straight_through")


def _complete(names: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """What the shell offers after TAB: the names that begin with what is there already."""
    return lambda incomplete: [name for name in names() if name.startswith(incomplete)]


Model = Annotated[
    str,
    Argument(
        metavar="MODEL",
        autocompletion=_complete(lambda: [name for names in lf.list_models().values() for name in names]),
        help="A bundled name, an architecture (wrn-28-10), robustbench:DATASET/THREAT/NAME, timm:NAME, "
        "torchvision:NAME, package.module:function or path/to/file.py:function.",
        show_default=False,
    ),
]
Weights = Annotated[str | None, Option(help="A checkpoint file: safetensors, or what torch.save wrote.")]
Device = Annotated[str, Option(help="cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one.")]
Mask = Annotated[
    str,
    Option(
        autocompletion=_complete(
            lambda: [name.replace("_", "-") for name in import_module("lipforge.forge.masks").MASKS]
        ),
        help="step, piecewise:d=0.5, smooth:a=20,b=10,argument=relative or mean-centred.",
    ),
]
Data = Annotated[
    str,
    Option(
        autocompletion=_complete(lambda: [entry.name.removesuffix("PATH") for entry in lf.list_data()]),
        help="cifar10, cifar10:train, cifar100, mnist, fashion-mnist, cifar10-sample, folder:PATH, npz:PATH, "
        "npy:IMAGES,LABELS, idx:PATH or hub:PATH.",
    ),
]
Root = Annotated[str | None, Option(help="A folder where you keep published data files (or LIPFORGE_DATA).")]
AttackText = Annotated[
    str,
    Option(help="The attack, such as pgd:steps=20. fast is lipforge's own cascade, autoattack is AutoAttack standard."),
]
Log = Annotated[
    str | None, Option(help="Also log results and progress: tensorboard:DIR, mlflow[:URI] or wandb[:PROJECT].")
]
RunPath = Annotated[str | None, Option(help="A run directory: keeps every shard; the same command again resumes.")]
BatchSize = Annotated[int, Option(help="Images per forward pass.")]
ShardSize = Annotated[int, Option(help="Images that are worked on together, and kept together.")]
Json = Annotated[
    bool,
    Option("--json", help="Print one JSON object instead of tables: kind, format, lipforge and a list of results."),
]


@dataclass(frozen=True)
class ModelOptions:
    panel: ClassVar[str] = "Model"
    model: Model
    weights: Weights = None
    weights_dir: Annotated[str | None, Option(help="A folder of checkpoints to search before any download.")] = None
    no_weights: Annotated[bool, Option("--no-weights", help="The architecture with random weights.")] = False
    classes: Annotated[int | None, Option(help="Build the model for this many classes.")] = None
    device: Device = "auto"

    def load(self, device: "torch.device") -> "nn.Module":
        made = lf.load_model(
            self.model, self.weights, weights_dir=self.weights_dir, pretrained=not self.no_weights, classes=self.classes
        )
        return made.to(device)


@dataclass(frozen=True)
class ImageOptions:
    panel: ClassVar[str] = "Image folders"
    resize: Annotated[int, Option(help="The shorter side becomes this; 0 leaves it.")] = 256
    crop: Annotated[int, Option(help="Centre crop of this size; 0 leaves it.")] = 224
    interpolation: Annotated[str, Option(help="bicubic or bilinear.")] = "bicubic"
    workers: Annotated[int | None, Option(help="Decoding processes.")] = None
    files: Annotated[
        str | None, Option(help="A text file that lists the images to read; robustbench for its list of ImageNet.")
    ] = None

    def for_data(self, spec: str, on_error: str = "raise") -> "lf.FolderOptions | None":
        """These options as the library takes them, checked; None where `spec` is no image folder."""
        made = lf.FolderOptions(
            self.resize or None,
            self.crop or None,
            self.interpolation,  # type: ignore[arg-type]  # the library checks the words itself
            on_error,  # type: ignore[arg-type]
            self.workers,
            self.files,
        )
        return made if spec.startswith("folder:") else None


@dataclass(frozen=True)
class DataOptions:
    panel: ClassVar[str] = "Data"
    data: Data = "cifar10"
    limit: Annotated[int | None, Option(help="At most this many images.")] = None
    data_seed: Annotated[int | None, Option(help="Take random images by this seed instead of the first ones.")] = None
    root: Root = None
    on_error: Annotated[str, Option(help="Image folders: raise at an unreadable image, or skip it.")] = "raise"
    folder: ImageOptions = ImageOptions()

    def open(self) -> "DataSet":
        """The images; what is said of image folders applies to nothing else."""
        folder = self.folder.for_data(self.data, self.on_error)
        return lf.load_data(self.data, limit=self.limit, seed=self.data_seed, root=self.root, folder=folder)


@dataclass(frozen=True)
class SiteOptions:
    panel: ClassVar[str] = "Sites"
    rule: Annotated[
        list[str] | None,
        Option(
            autocompletion=_complete(lambda: list(import_module("lipforge.forge.sites").RULES)),
            help="Which layers are sites, repeatable: residual_convs, mlp_linears (both by default), depthwise_convs, "
            "shortcut_convs, attention_projections, gate_layers, sequential_layers, activations, name:GLOB.",
        ),
    ] = None
    include: Annotated[list[str] | None, Option(help="Keep only sites that match this glob; repeatable.")] = None
    exclude: Annotated[list[str] | None, Option(help="Leave out sites that match this glob; repeatable.")] = None

    @property
    def chosen(self) -> dict[str, Any]:
        """The arguments of `find_sites` and `forge_` that choose sites."""
        rules = {"rules": self.rule} if self.rule else {}
        return {**rules, "include": self.include or (), "exclude": self.exclude or ()}


@dataclass(frozen=True)
class RecipeOptions:
    panel: ClassVar[str] = "Recipe"
    recipe: Annotated[
        str | None, Option(help="A recipe of `lipforge forge` or `improve`: measure the base and the changed model.")
    ] = None
    ratio: Annotated[
        str | None,
        Option(
            help="Another ratio than the recipe's; several, as in 2^-8,2^-7, not for search, transfer, audit, export."
        ),
    ] = None

    @property
    def ratios(self) -> list[float]:
        """The ratios that were given; none where the recipe's own is meant."""
        found = [parse_number(part.strip(), name="ratio") for part in self.ratio.split(",")] if self.ratio else []
        if len(set(found)) < len(found):
            raise InputError(f"--ratio must list different ratios, got {self.ratio}")
        return found

    def apply_(self, model: "nn.Module", *, several: bool = False) -> None:
        """Change the model by the recipe, at the ratio that was given; with `several` the caller sets them in turn."""
        ratios = self.ratios
        if self.recipe is None:
            if ratios:
                raise InputError("--ratio changes the ratio of a recipe; give one with --recipe")
            return
        if len(ratios) > 1 and not several:
            raise InputError(f"--ratio takes one ratio here, got {self.ratio}")
        lf.load_recipe(self.recipe).apply_(model)
        if ratios:
            require_forged(model, self.recipe)
            lf.set_ratio_(model, ratios[0])

    def views(self, model: "nn.Module", names: Sequence[str] | None = None) -> "dict[str, nn.Module]":
        """The classifiers by label: the model as "base", or with a recipe its base and the changed model, or `names`.

        The changed model is labelled by what the recipe adds, and by its ratio where there are several."""
        if names and self.recipe is None:
            raise InputError("--view is about a forged model and needs --recipe")
        for name in names or ():
            if name not in VIEWS:
                raise InputError(f"--view must be one of {', '.join(VIEWS)}, got {name!r}")
        self.apply_(model, several=True)
        if self.recipe is None:
            return {"base": model}
        if "straight_through" in (names or ()):
            require_forged(model, self.recipe)
        labels = {"plain": "base", "forged": lf.recipe_of(model).label}
        views = {}
        for ratio in self.in_turn(model):
            for name in names or ("plain", "forged"):
                label = labels.get(name, name)
                views[label if name == "plain" or not ratio else f"{label} {ratio}"] = getattr(lf, name)(model)
        return views

    def in_turn(self, model: "nn.Module") -> Iterator[str]:
        """Set one ratio after the other; the text of each, or "" where there is only one."""
        if len(self.ratios) < 2:
            yield ""
            return
        for ratio in self.ratios:
            lf.set_ratio_(model, ratio)
            yield ratio_text(ratio)


@dataclass(frozen=True)
class ThreatOptions:
    panel: ClassVar[str] = "Threat"
    norm: Annotated[str, Option(help="linf, l2 or l1.")] = "linf"
    eps: Annotated[str, Option(help="Largest size of the perturbation.")] = EPS

    @property
    def threat(self) -> Threat:
        """The threat, with a note where --eps was left at what suits linf only."""
        made = Threat(cast(Norm, self.norm), self.eps)
        if made.norm != "linf" and self.eps == EPS:
            note(f"eps {EPS} is usual in linf and tiny in {made.norm}; give --eps (usual are 0.5 in l2 and 12 in l1)")
        return made

    @property
    def threats(self) -> list[Threat]:
        """The threats of a list such as "2/255,4/255"; each once."""
        made = [ThreatOptions(self.norm, part.strip()).threat for part in self.eps.split(",")]
        if len({threat.eps for threat in made}) < len(made):
            raise InputError(f"--eps must list different radii, got {self.eps}")
        return made


@dataclass(frozen=True)
class RunOptions:
    panel: ClassVar[str] = "Run"
    run: RunPath = None
    seed: Annotated[
        int, Option(help="Seed of the random numbers of attacks and noise; --data-seed is about the images.")
    ] = 0
    log: Log = None
    processes: Processes = 1

    def open(self) -> "lf.RunDir | None":
        """The run directory, which keeps the command; None where none was asked for."""
        return None if self.run is None else open_run(self.run)

    def settings(self) -> dict[str, Any]:
        """The arguments `run` and `seed` of what can be resumed."""
        return {"run": self.open(), "seed": self.seed}

    def paths(self, *names: str) -> list[str]:
        """Where the results of these names are; none without a run."""
        return [] if self.run is None else [str(Path(self.run) / "results" / f"{name}.json") for name in names]


def command(**changes: Any) -> Callable[[Command], Command]:
    """A decorator for commands: typer sees the fields of every group, the function gets the group.

    `changes` give options of the groups another default (`...`: required), or a pair of a default and `typer.Option`.
    """

    def spread(function: Command) -> Command:
        hints = get_type_hints(function, include_extras=True)
        own = signature(function).parameters
        seen = [option for name in own for option in _options(name, hints[name], own[name].default, changes)]

        @wraps(function)
        def run(**given: Any) -> None:
            token = _effective.set({_key(option): given[option.name] for option in seen})
            values = {name: _value(hints[name], name, given) for name in own}
            keep = next((value for value in values.values() if isinstance(value, RunOptions)), RunOptions())
            try:
                with log_to(keep.log), in_processes(keep.processes, keep.run):
                    verdict = _exit(function, values)
            finally:
                _effective.reset(token)
            if verdict is not None and not is_helper():
                raise verdict

        run.__signature__ = Signature(seen)  # type: ignore[attr-defined]  # what typer and inspect read
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in seen}
        return run

    return spread


def _exit(function: Command, values: dict[str, Any]) -> Exit | None:
    """Run the command; the exit code that it asks for."""
    try:
        function(**values)
    except Exit as request:
        return request
    return None


def _options(name: str, kind: Any, default: Any, changes: dict[str, Any], panel: str = "") -> Iterator[Parameter]:
    """The option of that name, or those of a group and of the groups in it."""
    if is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            inner = Parameter.empty if field.default is MISSING else field.default
            yield from _options(field.name, hints[field.name], inner, changes, cast(Any, kind).panel)
        return
    if panel:
        hint, info = get_args(kind)
        default = changes.get(name, default)
        if isinstance(default, tuple):
            default, info = default
        if isinstance(info, OptionInfo):
            info = copy(info)
            info.rich_help_panel = panel
        kind = Annotated[hint, info]
    yield Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=default)


def _key(option: Parameter) -> str:
    """The name that an option has in a file for --config."""
    info = get_args(option.annotation)[-1]
    # In an annotation, typer keeps the first name where a default would be.
    names = [name for name in (info.default, *(info.param_decls or ())) if str(name).startswith("--")]
    return str(names[0] if names else option.name).removeprefix("--").replace("_", "-")


def _value(kind: Any, name: str, given: dict[str, Any]) -> Any:
    """A parameter of the command: what was given, or the group made of it."""
    if not is_dataclass(kind):
        return given[name]
    hints, make = get_type_hints(kind), cast(Callable[..., Any], kind)
    return make(**{field.name: _value(hints[field.name], field.name, given) for field in fields(kind)})


def require_forged(model: "nn.Module", recipe: str) -> None:
    """Raise if the recipe brought no forged function with a bound: TTA, head and affine parts have none."""
    if not any(bool((forge.bound > 0).any()) for forge in lf.forges(model).values()):
        raise InputError(f"{recipe} has no forged functions; `lipforge forge` writes a recipe that has them")


def open_run(path: str) -> "lf.RunDir":
    """The run directory at `path`, which keeps the command as it was given, and all its options as they were set there,
    in a file for --config, or by default."""
    config = {name: value for name, value in _effective.get({}).items() if value is not None}
    run = lf.RunDir.open(path, command=shlex.join(["lipforge", *sys.argv[1:]]), config=config)
    if is_first() and (shards := run.shards()):
        note(f"{path} has {shards} finished shard{'s' if shards > 1 else ''}; those of the same work are reused")
    return run


@contextmanager
def session(models: ModelOptions, data: DataOptions) -> "Iterator[tuple[Rank, DataSet, nn.Module, torch.device]]":
    """This process's rank among those of torchrun, the images, the model, and the device that it is on."""
    device = pick_device(models.device)
    with process_group(device) as rank:
        yield rank, data.open(), models.load(device), device


def pick_device(name: str) -> "torch.device":
    """The device of that name for this process, checked; `auto` prefers an accelerator."""
    import torch

    # cuDNN may otherwise choose algorithms that add in another order each time.
    torch.backends.cudnn.deterministic = True
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = own_device(torch.device(name))
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device must be one that torch can use here, got {name!r}: {str(error)[:100]}") from None
    return device
