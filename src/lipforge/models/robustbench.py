"""Models of RobustBench by `dataset/threat/name`; its files are found or downloaded here, and read without pickle.

Its own loader (version 1.1.1) is not used: with an older torch it would run whatever a downloaded pickle asks for.
"""

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from filelock import FileLock
from torch import nn

from lipforge.errors import InputError, ModelError, suggest
from lipforge.models.packages import downloading, import_package, layout_filter, quiet
from lipforge.models.weights import Wanted, find_weights, load_weights_, read_checkpoint

# Tensors in published checkpoints that RobustBench itself leaves aside.
_LEFTOVERS = (".scores", "model_preact_hl1.1.weight")
_SUFFIXES = (".pt", ".safetensors", ".pth")


@dataclass(frozen=True)
class Entry:
    """One line of RobustBench's table."""

    dataset: str
    threat: str
    name: str
    build: Any
    drive_ids: tuple[str, ...]
    timm_name: str

    def files(self, part: int) -> list[str]:
        """Where a checkpoint may lie in a directory: RobustBench's own place first, then the directory itself."""
        name = f"{self.name}.pt_m{part}" if len(self.drive_ids) > 1 else self.name
        places = (f"{self.dataset}/{self.threat}/{name}", name)
        return [f"{place}{suffix}" for place in places for suffix in _SUFFIXES]


def robustbench_model(spec: str, wanted: Wanted) -> nn.Module:
    """A model of RobustBench: from `weights`, from a file in `weights_dir`, or by RobustBench's download."""
    entry = find_entry(spec)
    classes = {"cifar10": 10, "cifar100": 100, "imagenet": 1000}[entry.dataset]
    if wanted.classes not in (None, classes):
        raise InputError(f"robustbench:{spec} has {classes} classes, not {wanted.classes}")
    model = _build(entry, classes)
    if wanted.weights is not None:
        _load_(model, entry, [str(wanted.weights)])
    elif wanted.pretrained and entry.drive_ids:
        parts = range(len(entry.drive_ids))
        _load_(model, entry, [str(_local_or_download(entry, part, wanted.weights_dir)) for part in parts])
    elif wanted.pretrained and entry.timm_name:
        # Registered with timm, which knows the address of their weights.
        if (local := find_weights(wanted.weights_dir, entry.files(0))) is not None:
            load_weights_(model, local)
        else:
            with quiet(), downloading(entry.name):
                loaded = import_package("timm").create_model(entry.timm_name, pretrained=True)
            model.load_state_dict(loaded.state_dict())
    return model


def find_entry(spec: str) -> Entry:
    """The table's line for "cifar10/Linf/Wu2020Adversarial_extra"; a wrong one gets the nearest names."""
    entries = robustbench_entries()
    if spec not in entries:
        hint = suggest(spec, entries) or "; list_models(['robustbench']) has all names"
        raise InputError(f"RobustBench has no model {spec!r} (the form is dataset/threat/name){hint}")
    return entries[spec]


def robustbench_entries() -> dict[str, Entry]:
    """All lines of RobustBench's table by "dataset/threat/name"."""
    zoo, timm = import_robustbench(), import_package("timm")
    entries = {}
    for dataset, threats in zoo.model_dicts.items():
        for threat, models in threats.items():
            for name, line in models.items():
                registered = f"{name.lower().replace('-', '_')}_{dataset.value}_{threat.value}".lower()
                ids = line["gdrive_id"] or ()
                drive_ids = (ids,) if isinstance(ids, str) else tuple(ids)
                timm_name = registered if timm.is_model(registered) else ""
                entry = Entry(dataset.value, threat.value, name, line["model"], drive_ids, timm_name)
                entries[f"{dataset.value}/{threat.value}/{name}"] = entry
    return entries


def import_robustbench() -> Any:
    """`robustbench.model_zoo`, which imports `autoattack`; PyPI's `pyautoattack` takes that name during the import."""
    import_package("timm")
    aliases: list[str] = []
    if "robustbench" not in sys.modules and importlib.util.find_spec("autoattack") is None:
        aliases = ["autoattack", "autoattack.state"]
        sys.modules.update({alias: import_package(f"py{alias}") for alias in aliases})
    try:
        import_package("robustbench")
        return import_package("robustbench.model_zoo")
    finally:
        for alias in aliases:
            del sys.modules[alias]


def carried_masks(model: nn.Module) -> list[str]:
    """The names of the modules in `model` that are MeanSparse masks: forging it would add masks to masks.

    RobustBench defines their class in five files, so a mask is known by its buffers: mean, variance and threshold.

    >>> carried_masks(nn.BatchNorm2d(3))
    []
    """
    masks = []
    for name, module in model.named_modules():
        buffers = {buffer for buffer, _ in module.named_buffers(recurse=False)}
        if {"running_mean", "running_var", "threshold"} <= buffers and not list(module.parameters(recurse=False)):
            masks.append(name)
    return masks


def _build(entry: Entry, classes: int) -> nn.Module:
    try:
        with quiet():
            if entry.timm_name:
                model = import_package("timm").create_model(entry.timm_name, pretrained=False, num_classes=classes)
            else:
                model = entry.build()
            return cast(nn.Module, model)
    except (OSError, RuntimeError, AssertionError) as error:
        # A few constructors download weights on their own (Standard_R50) or insist on CUDA (Bai2023Improving).
        raise ModelError(f"RobustBench could not build {entry.name}: {error}") from error


def _local_or_download(entry: Entry, part: int, weights_dir: str | Path | None) -> Path:
    """The checkpoint in `weights_dir`, in the cache, or downloaded into the first of these that is given."""
    names = entry.files(part)
    found = find_weights(weights_dir, names)
    home = Path(weights_dir or Path(torch.hub.get_dir()) / "robustbench")
    target = home / names[0]
    if found is not None or target.is_file():  # without a lock: the folder may be read-only
        return found or target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f".{target.name}.lock")):  # another process may be downloading it
        return target if target.is_file() else _download(entry, part, target)


def _download(entry: Entry, part: int, target: Path) -> Path:
    partial = target.with_name(f"{target.name}.part")
    drive_id = entry.drive_ids[part]
    way_out = f"get it from https://drive.google.com/file/d/{drive_id} and save it as {target}"
    try:
        with quiet(), downloading(f"{entry.dataset}/{entry.threat}/{entry.name}", way_out):
            import_package("robustbench.utils").download_gdrive_new(drive_id, partial)
            read_checkpoint(partial)  # an error page must not be kept under the checkpoint's name
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _load_(model: nn.Module, entry: Entry, files: list[str]) -> None:
    places = _parts(model, entry)
    if len(files) != len(entry.drive_ids) and len(entry.drive_ids) > 1:
        raise InputError(
            f"{entry.name} is made of {len(entry.drive_ids)} files, not {len(files)}: put them into a directory as "
            f"{entry.files(0)[0]}, {entry.files(1)[0]}, ... and name it with --weights-dir"
        )
    for file, targets in zip(files, places, strict=True):
        for key, target in targets.items():
            adapt = layout_filter(getattr(target, "model", target))
            chosen = file + (f"#{key}" if key else _choice(entry, file))
            load_weights_(target, chosen, adapt=adapt, ignore=_LEFTOVERS)


def _parts(model: nn.Module, entry: Entry) -> list[dict[str, nn.Module]]:
    """For each file of an entry: which key of it goes into which part of the model ("" is all of it)."""
    if len(entry.drive_ids) <= 1:
        return [{"": model}]
    if entry.name.startswith("Bai2024MixedNUTS"):
        return [{"": model.get_submodule("std_model")}, {"": model.get_submodule("rob_model")}]
    if entry.name.startswith("Bai2023Improving"):
        mixed = [{"": model.get_submodule(f"comp_model.models.{part}")} for part in range(2)]
        policy = {"model": model.get_submodule("comp_model.policy_net"), "bn": model.get_submodule("comp_model.bn")}
        return [*mixed, policy]
    return [{"": model.get_submodule(f"models.{part}")} for part in range(len(entry.drive_ids))]


def _choice(entry: Entry, file: str) -> str:
    """RobustBench takes the last of two models in these authors' files."""
    if not entry.name.startswith(("Kireev2021Effectiveness", "Andriushchenko2020Understanding")):
        return ""
    checkpoint = read_checkpoint(file)
    return "#last" if isinstance(checkpoint, Mapping) and "last" in checkpoint else ""
