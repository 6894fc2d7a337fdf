"""The paper's "+ Weight" variant: inputs that are nearly always forged to zero lose their weight columns instead.

Count first (`count_zeros`), then choose a frequency (`fold_`). The folded model needs no mask: take its `plain` view.
"""

import copy
import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from lipforge.batching import BATCH_SIZE, ImageSource, batches, check_eval, device_of, image_count
from lipforge.errors import InputError, RecipeError, SiteError
from lipforge.forge.change import change_of
from lipforge.forge.insert import refuse_affine, require_forges
from lipforge.forge.layer import Forge
from lipforge.forge.recipe import in_features
from lipforge.forge.sites import unwrap
from lipforge.forge.trackers import other_dims
from lipforge.forge.views import plain
from lipforge.progress import progress
from lipforge.recording import eager
from lipforge.records import write_whole

FoldableLayer = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear


@dataclass(frozen=True)
class ZeroCounts:
    """Per site, how often each input channel came out of the forged function as 0, and out of how many; on which
    `data`, and for which change of the model (`Recipe.digest`), each "" where it is not known."""

    zeros: dict[str, list[int]]
    elements: dict[str, int]
    images_seen: int
    data: str = ""
    recipe: str = ""

    def frequency(self, site: str) -> list[float]:
        """The share of zeros of each input channel of a site, in [0, 1]."""
        return [count / self.elements[site] for count in self.zeros[site]]


@dataclass(frozen=True)
class Fold:
    """Which weight columns were zeroed and what they held: enough to undo it, also after a restart."""

    frequency: float
    columns: dict[str, list[int]]
    counts: ZeroCounts
    originals: dict[str, Tensor]

    @torch.no_grad()
    def undo_(self, model: nn.Module) -> None:
        """Put the weights back, to the byte; an error if the model was not folded like this."""
        columns = {name: _columns(_layer(model, name), indices) for name, indices in self.columns.items()}
        for name, found in columns.items():
            if any(column.any() for column in found):
                raise InputError(f"site '{name}' is not folded: some of its {len(found)} columns are not zero")
        for name, found in columns.items():
            for column, original in zip(found, self.originals[name], strict=True):
                column.copy_(original)

    def save(self, path: str | Path) -> None:
        """Write counts, choice and original columns as one safetensors file."""
        choice = {"frequency": self.frequency, "columns": self.columns, "counts": asdict(self.counts)}
        tensors = {name: tensor.cpu().contiguous() for name, tensor in self.originals.items()}
        write_whole(path, save(tensors, metadata={"fold": json.dumps(choice)}))


def count_zeros(
    model: nn.Module, images: ImageSource, *, batch_size: int = BATCH_SIZE, show_progress: bool | None = None
) -> ZeroCounts:
    """How often each input channel of each site is zero, by the mask or before it; the mode should be `forged`."""
    found, inner, device = require_forges(model), unwrap(model), device_of(model)
    check_eval(inner)
    refuse_affine(model, "count_zeros")
    zeros = {name: torch.zeros(forge.channels, dtype=torch.int64, device=device) for name, forge in found.items()}
    elements = dict.fromkeys(found, 0)

    def watch(name: str, forge: Forge, args: tuple[Tensor], output: Tensor) -> None:
        zero = (output == 0).unsqueeze(0)
        zeros[name] += zero.sum(other_dims(zero, forge.channel_dim))
        elements[name] += output.numel() // output.shape[forge.channel_dim]

    seen = 0
    with ExitStack() as hooks, torch.no_grad(), eager():
        for name, forge in found.items():
            hooks.enter_context(forge.register_forward_hook(partial(watch, name)))
        step = hooks.enter_context(progress("counting zeros", image_count(images), show=show_progress))
        for batch in batches(images, batch_size):
            inner(batch.images.to(device))
            seen += len(batch.images)
            step(len(batch.images))
    counted, change = {name: count.tolist() for name, count in zeros.items()}, change_of(model)
    recipe = change.recipe if change is not None else None
    return ZeroCounts(counted, elements, seen, getattr(images, "name", ""), recipe or "")


@torch.no_grad()
def fold_(model: nn.Module, counts: ZeroCounts, *, frequency: float) -> Fold:
    """Zero the weight columns of the inputs that are forged to zero at least this often; what to undo it with.

    The count is per channel: the paper's input elements of a conv layer share their weights over all positions.
    """
    if not 0 < frequency <= 1:
        raise InputError(f"frequency must lie in (0, 1], got {frequency}")
    layers = {name: _layer(model, name) for name in counts.zeros}
    for name, layer in layers.items():
        expected = in_features(layer)
        if len(counts.zeros[name]) != expected or counts.elements.get(name, 0) < 1:
            raise InputError(
                f"counts must be of this model: site '{name}' takes {expected} channels, the counts have "
                f"{len(counts.zeros[name])} over {counts.elements.get(name, 0)} elements"
            )
    columns, originals = {}, {}
    for name, layer in layers.items():
        indices = [index for index, share in enumerate(counts.frequency(name)) if share >= frequency]
        if indices:
            found = _columns(layer, indices)
            columns[name], originals[name] = indices, torch.stack(found)
            for column in found:
                column.zero_()
    return Fold(frequency, columns, counts, originals)


def with_fold(model: nn.Module, fold: Fold) -> nn.Module:
    """The "+ Weight" model: a copy without masks in which the columns of `fold` are zero; an error if the fold was made
    for other weights."""
    copied = copy.deepcopy(unwrap(model))
    made = fold_(copied, fold.counts, frequency=fold.frequency)
    same = made.originals.keys() == fold.originals.keys() and all(
        torch.equal(columns.cpu(), fold.originals[name].cpu()) for name, columns in made.originals.items()
    )
    if not same:
        raise RecipeError("the fold was made for other weights than these; run `lipforge fold` on this model")
    return plain(copied)


def load_fold(path: str | Path) -> Fold:
    """A fold from its file; damage is an error that names the file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            choice = json.loads(file.metadata()["fold"])
            originals = {name: file.get_tensor(name) for name in choice["columns"]}
        return Fold(choice["frequency"], choice["columns"], ZeroCounts(**choice["counts"]), originals)
    except FileNotFoundError:
        raise RecipeError(f"no file {path}") from None
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RecipeError(f"{path} is not a fold that this version reads ({error}); was it cut short?") from None


def _layer(model: nn.Module, name: str) -> FoldableLayer:
    modules = dict(unwrap(model).named_modules())
    layer = modules.get(name)
    if not isinstance(layer, FoldableLayer):
        raise SiteError(f"site '{name}' cannot be folded: {type(layer).__name__} has no weight columns for its input")
    if "weight" not in layer._parameters:
        raise SiteError(f"site '{name}' cannot be folded: its weight is computed from other parameters")
    sharing = [other for other, module in modules.items() if module._parameters.get("weight") is layer.weight]
    others = [other for other in sharing if other != name]
    if others:
        raise SiteError(f"site '{name}' cannot be folded: it shares its weight with '{others[0]}'")
    return layer


def _columns(layer: FoldableLayer, indices: list[int]) -> list[Tensor]:
    """The weights that act on these input channels, as views; with groups, only the rows of the channel's group."""
    if isinstance(layer, nn.Linear):
        return [layer.weight[:, index] for index in indices]
    per_group, rows = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    groups = ((index // per_group, index % per_group) for index in indices)
    return [layer.weight[group * rows : (group + 1) * rows, column] for group, column in groups]
