"""The certified bracket: how many images are proven robust, and how many an attack leaves. The truth is in between."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from lipforge.attacks import AnyAttack
from lipforge.batching import LabelledSource
from lipforge.certification.bounds import Bounds, Region, bounds_of, margins
from lipforge.certification.network import Network, network_of
from lipforge.errors import BoundError, InputError
from lipforge.evaluation import evaluate
from lipforge.evaluation.robust import task_name
from lipforge.results import CERTIFIED, MISCLASSIFIED, ROBUST, UNKNOWN, BracketComparison, BracketResult
from lipforge.results.bracket import bracket_fields
from lipforge.runs import Experiment, RunDir, Shard, Watch, change_of, digest_of, slug
from lipforge.runs.identity import canonical
from lipforge.text import duration
from lipforge.types import Classifier, Threat, check_threat

Method = Literal["crown", "crown-ibp"]
SHARD_SIZE = 20  # images whose bounds an interruption can lose
TOGETHER = 4  # images whose boxes are in memory at a time


def bracket(
    classifier: Classifier,
    data: LabelledSource,
    threat: Threat,
    *,
    attack: AnyAttack = "fast",
    method: Method = "crown",
    run: RunDir | None = None,
    label: str = "model",
    model_name: str = "",
    seed: int = 0,
    identity: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> BracketResult:
    """Which images of `data` are certified, broken by `attack`, or neither; certified <= truth <= attacked accuracy.

    Certified means that no image in the ball of `threat`, cut with [0, 1], has another class: a deterministic bound on
    the margin is above 0. `method` "crown" bounds every layer backward; "crown-ibp", which is much quicker and much
    looser, bounds the margins backward and the layers inside by intervals. An image that is
    certified and broken is an error (`BoundError`). Runs, labels and identities are as in `evaluate`.
    """
    check_threat(threat)
    if method not in get_args(Method):
        raise InputError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    experiment = Experiment.open(data, classifier, run=run, identity=identity, show_progress=show_progress)
    network = network_of(classifier, experiment.read([0]).x[0])  # before the attack: it may be refused
    about: dict[str, Any] = {"label": label, "model_name": model_name, "seed": seed, "identity": identity}
    found = evaluate(classifier, data, attack, threat, run=run, **about, show_progress=show_progress)
    name = bracket_name(label, found.attack, str(threat), found.seed, method)
    config = {
        "method": method,
        "threat": {"norm": threat.norm, "eps": threat.eps},
        "outcome": digest_of(list(found.outcome)),
    }
    task = experiment.task(name, {"model": classifier}, config, shard_size=SHARD_SIZE)
    watch = Watch(lambda shard: {"certified": [ROBUST if word == CERTIFIED else "" for word in shard["outcome"]]})
    shards = experiment.work(
        task,
        lambda shard: _bracket_shard(
            network, shard, [found.outcome[i] for i in shard.ids.tolist()], threat, method, watch
        ),
        title=f"bounding {label}",
        status=watch,
    )
    result = BracketResult(
        label=label,
        model=model_name,
        method=method,
        **{name: getattr(found, name) for name in ("data", "attack", "threat", "norm", "eps", "seed", "notes")},
        **bracket_fields(tuple(word for shard in shards for word in shard["outcome"])),
        margin=tuple(margin for shard in shards for margin in shard["margin"]),
        **{part: sum(shard[part] for shard in shards) for part in ("quick", "bounded", "seconds")},
        attack_seconds=found.seconds,
        model_digest=experiment.model_digest(classifier),
        data_digest=experiment.data_digest,
        change=change_of(classifier),
    )
    return experiment.finish(name, result)


def bracket_name(label: str, attack: str, threat: str, seed: int, method: str = "crown") -> str:
    """What a bracket's shards and result are called in a run directory.

    >>> bracket_name("base", "fast", "linf 2/255", seed=0)
    'bracket__base__fast__linf-2over255'
    """
    quick = "" if method == "crown" else f"__{method}"
    return f"bracket__{task_name(label, attack, threat, seed)}{quick}"


def comparison_name(found: BracketComparison) -> str:
    """What the comparison of two brackets is called in a run directory; another attack, data or seed makes another."""
    digest = digest_of([found.attack, found.threat, found.seed, found.method, canonical(found.data), found.count])[:8]
    return f"brackets__{slug(found.candidate)}-against-{slug(found.base)}__{digest}"


@torch.no_grad()
def _bracket_shard(
    network: Network, shard: Shard, attacked: list[str], threat: Threat, method: Method, say: Callable[[str], None]
) -> dict[str, Any]:
    """The outcomes of a shard's images and the bounds on their margins, ready for JSON.

    The quick pass (crown-ibp) takes all images that were classified correctly; the full pass
    those of them that are neither broken nor certified, and one broken image, which it must not certify. `say` gets
    the time that it may take.
    """
    started = time.perf_counter()
    correct = torch.tensor([word != MISCLASSIFIED for word in attacked])
    robust = torch.tensor([word == ROBUST for word in attacked])
    margin, work = torch.full((2, len(attacked)), -torch.inf, dtype=torch.float64)
    for rows in _parts(correct):
        part = shard.at(rows.to(shard.x.device))
        bounds = bounds_of(network, Region.of(part.x, threat), full=False)
        margin[rows], work[rows] = _least_margins(bounds, part), bounds.crown_work().double().cpu()
    quick = int((robust & (margin > 0)).sum())
    left = (robust & (margin <= 0)) | _first(correct & ~robust)
    for rows in _parts(left) if method == "crown" else ():
        part, step = shard.at(rows.to(shard.x.device)), _Pace(float(work[rows].mean()), say)
        bounds = bounds_of(network, Region.of(part.x, threat), full=True, step=step)
        margin[rows] = torch.maximum(margin[rows], _least_margins(bounds, part))
    outcome = [_outcome(*row) for row in zip(attacked, margin.tolist(), shard.ids.tolist(), strict=True)]
    return {
        "outcome": outcome,
        "margin": [value if right else None for value, right in zip(margin.tolist(), correct.tolist(), strict=True)],
        "quick": quick,
        "bounded": int(correct.sum()),
        "seconds": time.perf_counter() - started,
    }


def _least_margins(bounds: Bounds, shard: Shard) -> Tensor:
    return margins(bounds, shard.y).amin(1).cpu()


class _Pace:
    """Says how long CROWN takes per image at most, from the speed so far: on a deep network it may never end."""

    def __init__(self, work_per_image: float, say: Callable[[str], None]) -> None:
        self.total, self.say = work_per_image, say
        self.done, self.started = 0, time.perf_counter()

    def __call__(self, work: int) -> None:
        self.done += work
        seconds = (time.perf_counter() - self.started) * self.total / self.done
        self.say(f"crown, at most about {duration(seconds)} per image")


def _parts(mask: Tensor) -> list[Tensor]:
    """The rows where the mask is true, as many at a time as are bounded together."""
    rows = mask.nonzero().squeeze(1)
    return list(torch.split(rows, TOGETHER)) if len(rows) else []


def _first(mask: Tensor) -> Tensor:
    """The mask with its first true entry alone."""
    return mask & (mask.cumsum(0) == 1)


def _outcome(attacked: str, margin: float, index: int) -> str:
    if margin > 0 and attacked not in (ROBUST, MISCLASSIFIED):
        raise BoundError(
            f"image {index} is certified with a margin of at least {margin:.3g}, and {attacked} broke it: one of "
            "the two is wrong, which is a bug in lipforge. Please report it with the model and the image"
        )
    return attacked if attacked != ROBUST else CERTIFIED if margin > 0 else UNKNOWN
