"""Adversarial images crafted on one classifier and scored on another."""

import time
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from lipforge.attacks import Attack, notes_and_square, square_notes
from lipforge.attacks.queries import is_fooled
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.batching import ImageData, check_eval, device_of
from lipforge.errors import InputError
from lipforge.evaluation.identity import attack_text, task_name
from lipforge.evaluation.intervals import clopper_pearson
from lipforge.evaluation.push import PUSH
from lipforge.evaluation.push import push as push_on
from lipforge.evaluation.results import merge_notes, share_text
from lipforge.evaluation.tally import Shard, load
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import data_identity, identified
from lipforge.types import Classifier, Norm, Threat


@dataclass(frozen=True)
class TransferResult:
    """How a target fared against images crafted on a source, with 95 % intervals.

    `source_robust_accuracy` is the source's own accuracy under the attack and the push, `robust_accuracy` the target's
    on the images crafted for the source. Of the `shared` images that both get right and that fool the source,
    `transferred` fool the target too. `outcome` says for each image how the target fared:
    "robust", "misclassified" or "transfer".
    """

    source: str
    target: str
    attack: str
    threat: str
    norm: str
    eps: float
    push: int
    data: str
    seed: int
    count: int
    source_clean_accuracy: float
    source_robust_accuracy: float
    source_interval: tuple[float, float]
    clean_accuracy: float
    clean_interval: tuple[float, float]
    robust_accuracy: float
    interval: tuple[float, float]
    shared: int
    transferred: int
    forwards: int
    backwards: int
    seconds: float
    outcome: tuple[str, ...]
    source_outcome: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def robust(self) -> list[bool]:
        """Whether the target withstands each image."""
        return [word == ROBUST for word in self.outcome]

    @property
    def result_name(self) -> str:
        """The name of this result, and of its shards, in a run directory."""
        threat = Threat(cast(Norm, self.norm), self.threat.removeprefix(f"{self.norm} "))
        return _name((self.source, self.target), self.attack, threat, self.seed)

    def __str__(self) -> str:
        return (
            f"{self.source} -> {self.target}: {share_text(self.robust_accuracy, self.interval)} under {self.attack} "
            f"{self.threat} crafted on {self.source}; {self.transferred} of {self.shared} images that fool "
            f"{self.source} fool {self.target}; this is {self.count} images"
        )


def transfer(
    source: Classifier,
    target: Classifier,
    data: ImageData | tuple[Tensor, Tensor],
    attack: Attack,
    threat: Threat,
    *,
    names: tuple[str, str] = ("source", "target"),
    push: int = PUSH,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = 100,
    show: bool | None = None,
) -> TransferResult:
    """How `target` fares against the images that `attack` crafts on `source`.

    Attacks stop just across the source's boundary, where a point says little about another classifier. So each point is
    then pushed on: `push` steps of a tenth of eps up the source's margin, and the point with the largest margin counts.
    `push` = 0 takes the attack's points as they are, as the paper did.
    """
    if push < 0:
        raise InputError(f"push must be at least 0, got {push}")
    if push and threat.norm == "l1":
        raise InputError("push knows the norms linf and l2, got l1; push 0 takes the attack's points as they are")
    for classifier in (source, target):
        if isinstance(classifier, nn.Module):
            check_eval(classifier)
    craft = Craft(source, target, as_data(data), attack, threat, seed, push)
    name = _name(names, attack_text(attack), threat, seed)
    task = open_task(run, name, craft.config(in_run=run is not None), len(craft.data), shard_size)
    watch = Watch(lambda shard: dict(zip(names, (shard["source"], shard["target"]), strict=True)))
    title = f"{names[0]} to {names[1]}"
    shards = work(task, lambda images: craft.shard(images, watch), title, status=watch, show=show)
    result = _gather(craft, names, shards)
    if run is not None and is_first():
        run.write_result(name, result)
    return result


def _name(names: tuple[str, str], attack: str, threat: Threat, seed: int) -> str:
    return f"transfer__{task_name('-to-'.join(names), attack, threat, seed)}"


@dataclass(frozen=True)
class Craft:
    """All it takes to compute any shard of a transfer."""

    source: Classifier
    target: Classifier
    data: ImageData
    attack: Attack
    threat: Threat
    seed: int
    push: int

    def shard(self, images: range, watch: Watch) -> dict[str, Any]:
        """What became of these images on both sides."""
        started = time.perf_counter()
        device = device_of(self.source) if isinstance(self.source, nn.Module) else None
        shard = load(self.data, images, device)
        result = self.attack.run(
            self.source, shard.x, shard.y, threat=self.threat, seed=self.seed, sample_ids=shard.ids, watch=watch
        )
        right = torch.tensor([word != MISCLASSIFIED for word in result.outcome], device=shard.x.device)
        at = right.nonzero().squeeze(1)
        x, y, points = shard.x[at], shard.y[at], result.images[at]
        pushed = push_on(self.source, points, x, y, shard.ids[at], self.threat, self.push)
        crafted = shard.x.index_copy(0, at, pushed.points)
        on_source = list(result.outcome)
        for place in at[pushed.margin > 0].tolist():
            on_source[place] = "push" if on_source[place] == ROBUST else on_source[place]
        notes, square = notes_and_square(result)
        if stuck := int(pushed.stuck.sum()):
            notes.append(f"{stuck} of {len(at)} images met a gradient of exactly 0, or none, and were not pushed there")
        return {
            "source": on_source,
            "target": _on_target(self.target, shard, crafted),
            "notes": notes,
            "square": square,
            "forwards": int(result.forwards.sum()) + 2 * len(shard.x) + pushed.forwards * len(at),
            "backwards": int(result.backwards.sum()) + pushed.backwards * len(at),
            "seconds": time.perf_counter() - started,
        }

    def config(self, *, in_run: bool) -> dict[str, Any]:
        """Everything that determines the numbers."""
        return {
            "lipforge": lipforge_version(),
            "source": identified(self.source, None, in_run=in_run),
            "target": identified(self.target, None, in_run=in_run),
            "data": data_identity(self.data),
            "attack": attack_text(self.attack),
            "threat": {"norm": self.threat.norm, "eps": self.threat.eps},
            "seed": self.seed,
            "push": self.push,
        }


def _on_target(target: Classifier, shard: Shard, crafted: Tensor) -> list[str]:
    device = device_of(target) if isinstance(target, nn.Module) else shard.x.device
    clean, fooled = (is_fooled(target, x.to(device), shard.y.to(device)).tolist() for x in (shard.x, crafted))
    return [
        MISCLASSIFIED if wrong else "transfer" if fell else ROBUST for wrong, fell in zip(clean, fooled, strict=True)
    ]


def _gather(craft: Craft, names: tuple[str, str], shards: list[dict[str, Any]]) -> TransferResult:
    source, target = (tuple(word for shard in shards for word in shard[side]) for side in ("source", "target"))
    count = len(target)
    right, stands = count - target.count(MISCLASSIFIED), target.count(ROBUST)
    shared = [
        end for start, end in zip(source, target, strict=True) if MISCLASSIFIED not in (start, end) and start != ROBUST
    ]
    return TransferResult(
        source=names[0],
        target=names[1],
        attack=attack_text(craft.attack),
        threat=str(craft.threat),
        norm=craft.threat.norm,
        eps=craft.threat.eps,
        push=craft.push,
        data=craft.data.name,
        seed=craft.seed,
        count=count,
        source_clean_accuracy=(count - source.count(MISCLASSIFIED)) / count,
        source_robust_accuracy=source.count(ROBUST) / count,
        source_interval=clopper_pearson(source.count(ROBUST), count),
        clean_accuracy=right / count,
        clean_interval=clopper_pearson(right, count),
        robust_accuracy=stands / count,
        interval=clopper_pearson(stands, count),
        shared=len(shared),
        transferred=shared.count("transfer"),
        outcome=target,
        source_outcome=source,
        notes=(*merge_notes(shards, count), *square_notes(sum(shard["square"] for shard in shards), count)),
        **{name: sum(shard[name] for shard in shards) for name in ("forwards", "backwards", "seconds")},
    )
