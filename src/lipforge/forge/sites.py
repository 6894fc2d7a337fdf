"""Where forged functions go: the inputs of layers, found by rules from one recorded forward pass."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from lipforge.batching import check_eval, check_images, device_of
from lipforge.errors import InputError, ModelError, SiteError
from lipforge.forge.graph import ACTIVATIONS, LAYERS, Call, Graph, Role, roles, trace

ROLES: dict[Role, tuple[str, str]] = {
    "conv": ("residual_convs", "on the main path of a residual block: rule residual_convs"),
    "mlp": ("mlp_linears", "in an MLP: rule mlp_linears"),
    "depthwise": ("depthwise_convs", "depthwise conv: opt in with the rule depthwise_convs"),
    "shortcut": ("shortcut_convs", "projection on a shortcut: opt in with the rule shortcut_convs"),
    "attention": (
        "attention_projections",
        "query, key, value or output projection: opt in with the rule attention_projections",
    ),
    "gate": ("gate_layers", "computes a gate (squeeze-and-excitation): opt in with the rule gate_layers"),
    "between": ("sequential_layers", "outside every residual block: opt in with the rule sequential_layers"),
    "activation": ("activations", "an activation: opt in with the rule activations"),
    "first": ("", "the stem"),
    "last": ("", "the head"),
}
"""For each role the rule that selects it, if there is one, and why a layer is no site without that rule."""

RULES: dict[str, Role] = {rule: role for role, (rule, _) in ROLES.items() if rule}
"""Rule names and the role that each selects; `name:GLOB` selects any called layer by its name."""

DEFAULT_RULES = ("residual_convs", "mlp_linears")
UNCALLED = "never called as a module on the way from the image to the logits"
QUANTIZED = "torch.ao.nn."  # where the layers live that quantization puts in the place of others
INPUT_SIZES = (32, 224, 64, 28, 96, 128, 256, 384, 299, 16, 8)

Types = tuple[type[nn.Module], ...]


@dataclass(frozen=True)
class Site:
    """The input of one layer. `in_features` is 0 where calls differ in it, as for an activation that is shared."""

    name: str
    rule: str
    layer: str
    in_features: int
    input_shape: tuple[int, ...]
    channel_dim: int


@dataclass(frozen=True)
class Skipped:
    name: str
    layer: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """The sites in the order the model calls them, which rules fired and why, and what was left out."""

    sites: tuple[Site, ...]
    rules: tuple[str, ...]
    reason: str
    skipped: tuple[Skipped, ...]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, index: int) -> Site:
        return self.sites[index]

    @property
    def names(self) -> list[str]:
        return [site.name for site in self.sites]


def find_sites(
    model: nn.Module,
    images: Tensor | None = None,
    *,
    rules: Sequence[str] = DEFAULT_RULES,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    types: Types = (),
) -> Survey:
    """The sites of `model`: conv inputs on the main paths of residual blocks, and fc1 and fc2 of MLPs.

    The model runs once on one image (grey, of a size that fits, unless `images` are given); its code is not read.
    `rules` are united; `include`, `exclude` (globs of layer names) and `types` then restrict the result. A model
    without any residual block gets `sequential_layers`: every conv and linear layer but the first and the last.
    """
    model = unwrap(model)
    _check_rules(rules)
    if isinstance(model, torch.jit.ScriptModule):
        raise SiteError("a scripted model cannot be forged; pass the module that was given to torch.jit.script")
    check_eval(model)
    calls = roles(_trace(model, images))
    chosen, reason = _choose_rules(tuple(rules), calls)
    sites, skipped = [], []
    for name, layer in model.named_modules():
        if not isinstance(layer, LAYERS + ACTIVATIONS):
            continue
        call, kind, why_not = calls.get(name), type(layer).__name__, UNCALLED
        if call is not None:
            rule = _matching_rule(name, call, chosen)
            why_not = _restricted(name, layer, include, exclude, types) if rule else ROLES[call.role][1]
            if rule and not why_not:
                sites.append((call.node, Site(name, rule, kind, call.channels, call.input_shape, call.channel_dim)))
        if why_not and (not isinstance(layer, ACTIVATIONS) or "activations" in chosen):
            skipped.append(Skipped(name, kind, why_not))
    if not sites:
        raise SiteError(_nothing_found(model, chosen, skipped))
    return Survey(tuple(site for _, site in sorted(sites, key=lambda pair: pair[0])), chosen, reason, tuple(skipped))


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DataParallel, DistributedDataParallel and torch.compile."""
    parallel = isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel)
    inner = getattr(model, "module" if parallel else "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


def _check_rules(rules: Sequence[str]) -> None:
    known = f"known are {', '.join(RULES)} and name:GLOB"
    if isinstance(rules, str):
        raise SiteError(f"rules must be a sequence of names, got the text {rules!r}; write [{rules!r}]")
    if not rules:
        raise SiteError(f"rules must not be empty: {known}")
    for rule in rules:
        if rule == "plain_layers":
            raise SiteError("the rule 'plain_layers' is now called 'sequential_layers'; write that name")
        if rule not in RULES and not rule.startswith("name:"):
            hint = "".join(f"; did you mean '{close}'?" for close in get_close_matches(rule, RULES, n=1))
            raise SiteError(f"unknown rule {rule!r}: {known}{hint}")


def _choose_rules(rules: tuple[str, ...], calls: dict[str, Call]) -> tuple[tuple[str, ...], str]:
    in_blocks = any(call.role in ("conv", "mlp", "depthwise", "attention") for call in calls.values())
    if set(rules) == set(DEFAULT_RULES) and not in_blocks:
        return ("sequential_layers",), (
            "no residual block was found (no addition joins two paths from one activation), "
            "so every conv and linear layer but the first and the last is a site"
        )
    counts = {rule: sum(bool(_matching_rule(name, call, (rule,))) for name, call in calls.items()) for rule in rules}
    return rules, "layers selected by " + ", ".join(f"{rule} ({count})" for rule, count in counts.items())


def _matching_rule(name: str, call: Call, rules: Sequence[str]) -> str | None:
    for rule in rules:
        if RULES.get(rule) == call.role or (rule.startswith("name:") and fnmatchcase(name, rule.removeprefix("name:"))):
            return rule
    return None


def _restricted(name: str, layer: nn.Module, include: Sequence[str], exclude: Sequence[str], types: Types) -> str:
    """Why a layer that a rule selects is not a site all the same, or the empty text if it is one."""
    if include and not any(fnmatchcase(name, glob) for glob in include):
        return f"matches no glob of include ({', '.join(include)})"
    if any(fnmatchcase(name, glob) for glob in exclude):
        return f"matches a glob of exclude ({', '.join(exclude)})"
    if types and not isinstance(layer, types):
        return f"not of the types {', '.join(kind.__name__ for kind in types)}"
    return ""


def _nothing_found(model: nn.Module, rules: tuple[str, ...], skipped: list[Skipped]) -> str:
    quantized = [name for name, layer in model.named_modules() if type(layer).__module__.startswith(QUANTIZED)]
    if quantized:
        return f"layers that torch.ao quantized are no sites ('{quantized[0]}'); forge the model before quantizing it"
    if not skipped:
        return "the model has no conv or linear layer, so there is no site"
    reasons = some([f"'{layer.name}': {layer.reason}" for layer in skipped], "; ")
    by_name = "A rule name:GLOB takes any layer by its name"
    return f"no site was found by the rules {', '.join(rules)}. Layers: {reasons}. {by_name}"


def some(parts: Sequence[str], joint: str = ", ") -> str:
    """The first five of a list, for a message, and how many more there are."""
    return joint.join([*parts[:5], *([f"and {len(parts) - 5} more"] if len(parts) > 5 else [])])


def _trace(model: nn.Module, images: Tensor | None) -> Graph:
    """The graph of one forward pass, on the first of `images` or on a grey image of the first size that fits."""
    device = device_of(model)
    if images is not None:
        check_images(images)
        if len(images) == 0:
            raise InputError("images must not be empty: one is needed to see which layers run")
        try:
            return trace(model, images[:1].to(device))
        except Exception as error:
            raise ModelError(f"the model fails on images of the shape {tuple(images.shape[1:])}: {error}") from error
    floating = (tensor.dtype for tensor in model.parameters() if tensor.is_floating_point())
    dtype, failures = next(floating, torch.float32), []
    for shape in _likely_shapes(model):
        try:
            return trace(model, torch.full((1, *shape), 0.5, device=device, dtype=dtype))
        except Exception as error:  # any error only means that this shape does not fit
            failures.append(f"{shape}: {next(iter(str(error).splitlines()), repr(error))}")
    raise SiteError(f"no image size fits this model; pass images=... to show it one. Tried {'; '.join(failures[:3])}")


def _likely_shapes(model: nn.Module) -> Iterator[tuple[int, ...]]:
    """Image shapes to try: what timm's models say of themselves, then the usual sizes."""
    for module in model.modules():
        settings = getattr(module, "pretrained_cfg", None)
        if isinstance(settings, dict) and isinstance(settings.get("input_size"), list | tuple):
            yield tuple(settings["input_size"])
    convs = (module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d))
    channels = [conv.in_channels for conv in itertools.islice(convs, 1)] or [3, 1]
    yield from ((channel, size, size) for size in INPUT_SIZES for channel in channels)
