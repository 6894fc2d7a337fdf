"""The search for the ratio of a forged model: forging, attacks and evaluation meet here."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, get_args

from torch import Tensor, nn

from lipforge.attacks import Attack, AutoAttack
from lipforge.batching import ImageData, device_of
from lipforge.errors import InputError
from lipforge.evaluation.contest import AUDIT, NEAR
from lipforge.evaluation.scores import SearchResult, Setting
from lipforge.evaluation.search import RATIOS, Views, search_ratio
from lipforge.forge.insert import forges, require_forges, set_ratio_
from lipforge.forge.views import forged, plain, straight_through
from lipforge.runs import RunDir
from lipforge.types import Classifier, Threat

Metric = Literal["plain", "union"]


def choose_ratio(
    model: nn.Module,
    data: ImageData | tuple[Tensor, Tensor],
    *,
    threat: Threat,
    ratios: Sequence[float] = RATIOS,
    attack: Attack | None = None,
    metric: Metric = "union",
    groups: Sequence[str] | bool = False,
    near: float | None = NEAR,
    audit: float = AUDIT,
    all_ratios: bool = False,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = 100,
    rounds: int | None = None,
    show: bool | None = None,
) -> SearchResult:
    """The ratio to use for a forged and calibrated `model`, found on validation images, with the reason and all scores.

    Clean accuracy of all `ratios` comes first; the best one and its neighbours are then attacked, and the base
    (ratio 0) with them; with `all_ratios` all of them are. `metric` "plain" attacks the forged model as it is;
    "union" also through a backward pass that ignores the masks, and gives the base a second run of its own instead.
    The attack is autoattack("fast") unless told. With `groups`, globs of site names or True for the stages of the
    network, each group gets a ratio of its own. The model's ratios are afterwards what they were;
    `set_ratio_(model, result.chosen)` applies the choice.
    """
    if metric not in get_args(Metric):
        raise InputError(f"metric must be plain or union, got {metric!r}")
    before = {name: forge.ratio for name, forge in require_forges(model).items()}
    if not any(bool((forge.bound > 0).any()) for forge in forges(model).values()):
        raise InputError("the model's forged functions have no bounds yet; calibrate them with forge_ or calibrate_")
    named = stages(list(before)) if groups is True else tuple(groups or ())
    for name in before if named else ():
        if not any(name == glob or fnmatchcase(name, glob) for glob in named):
            raise InputError(f"groups must cover every site, but none of {', '.join(named)} matches '{name}'")
    try:
        return search_ratio(
            views_of(model, metric),
            data,
            attack or AutoAttack("fast"),
            threat,
            metric=metric,
            ratios=ratios,
            groups=named,
            near=near,
            audit=audit,
            all_ratios=all_ratios,
            run=run,
            seed=seed,
            shard_size=shard_size,
            rounds=rounds,
            device=device_of(model),
            show=show,
        )
    finally:
        set_ratio_(model, before)


def views_of(model: nn.Module, metric: Metric) -> Views:
    """For each setting the classifiers to attack; making them sets the model's ratios."""

    def views(setting: Setting) -> Mapping[str, Classifier]:
        if not setting:
            base = plain(model)
            return {"base": base} if metric == "plain" else {"base": base, "base again": base}
        set_ratio_(model, setting)
        made: dict[str, Classifier] = {"forged": forged(model)}
        return made if metric == "plain" else {**made, "straight_through": straight_through(model)}

    return views


def stages(names: Sequence[str]) -> tuple[str, ...]:
    """Globs for the stages of a network: the shortest name prefixes that tell at least two groups of sites apart.

    >>> stages(["layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1"])
    ('layer1.*', 'layer2.*')
    """
    parts = [name.split(".") for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        heads = list(dict.fromkeys(tuple(part[:length]) for part in parts))
        if len(heads) > 1:
            return tuple(".".join(head) + ("" if list(head) in parts else ".*") for head in heads)
    return tuple(names)
