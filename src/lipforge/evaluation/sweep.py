"""Accuracy over many eps and attacks in one run: the layout of the paper's FGSM/PGD and CW tables."""

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lipforge.attacks import FGSM, Attack, notes_and_square, square_notes
from lipforge.attacks.queries import is_fooled
from lipforge.attacks.result import AttackResult
from lipforge.attacks.trial import MISCLASSIFIED, ROBUST
from lipforge.batching import ImageData, device_of
from lipforge.errors import InputError
from lipforge.evaluation.identity import attack_text, task_name
from lipforge.evaluation.intervals import clopper_pearson
from lipforge.evaluation.results import merge_notes
from lipforge.evaluation.tally import load
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.ranks import is_first
from lipforge.runs import RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import data_identity, identified, slug
from lipforge.runs.tasks import digest_of
from lipforge.types import Classifier, Threat


@dataclass(frozen=True)
class SweepRow:
    """One classifier against one attack at one eps.

    `outcome` says for each image "robust", "misclassified" or the attack that fooled it; `carried` of the fooled ones
    were fooled at a smaller eps already and not attacked again.
    """

    label: str
    attack: str
    threat: str
    eps: float
    count: int
    clean_accuracy: float
    clean_interval: tuple[float, float]
    robust_accuracy: float
    interval: tuple[float, float]
    carried: int
    forwards: int
    backwards: int
    seconds: float
    outcome: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def robust(self) -> list[bool]:
        """Whether each image stands."""
        return [word == ROBUST for word in self.outcome]


@dataclass(frozen=True)
class SweepResult:
    """All rows: classifier by classifier, attack by attack, eps rising; `notes` are the reasons to doubt them.

    With `carry`, an image fooled at one eps counts as fooled at every larger one, because the point that fooled it lies
    in the larger ball too: accuracies then fall with eps by construction. Without it every eps is attacked afresh, as
    in the paper, and an accuracy that rises with eps is a sign of masked gradients.
    """

    rows: tuple[SweepRow, ...]
    carry: bool
    norm: str
    data: str
    seed: int
    count: int
    forwards: int
    backwards: int
    seconds: float
    notes: tuple[str, ...]


def sweep(
    classifiers: Mapping[str, Classifier],
    data: ImageData | tuple[Tensor, Tensor],
    attacks: Sequence[Attack],
    threats: Sequence[Threat],
    *,
    carry: bool = True,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = 100,
    show: bool | None = None,
) -> SweepResult:
    """The accuracy of each classifier against each attack at each of `threats`, which share one norm."""
    if not classifiers or not attacks or not threats:
        raise InputError("classifiers, attacks and threats must each have at least one entry")
    if len({threat.norm for threat in threats}) > 1:
        raise InputError(f"threats must share one norm, got {', '.join(map(str, threats))}")
    source, rising = as_data(data), tuple(sorted(threats, key=lambda threat: threat.eps))
    rows: list[SweepRow] = []
    for label, classifier in classifiers.items():
        for attack in attacks:
            leg = Leg(label, classifier, source, attack, rising, seed, carry)
            rows += leg.rows(run, shard_size, show)
    result = SweepResult(
        rows=tuple(rows),
        carry=carry,
        norm=rising[0].norm,
        data=source.name,
        seed=seed,
        count=len(source),
        forwards=sum(row.forwards for row in rows),
        backwards=sum(row.backwards for row in rows),
        seconds=sum(row.seconds for row in rows),
        notes=(
            *suspicions(rows, attacks),
            *dict.fromkeys(f"{r.label}, {r.attack} {r.threat}: {n}" for r in rows for n in r.notes),
        ),
    )
    if run is not None and is_first():
        run.write_result(result_name(result), result)
    return result


def result_name(result: SweepResult) -> str:
    """What a sweep is called in a run: other rows, images or seeds make another name."""
    about = [[row.label, row.attack, row.threat] for row in result.rows]
    attacks = "+".join(dict.fromkeys(row.attack for row in result.rows))
    return f"sweep__{slug(attacks)}__{digest_of([about, result.data, result.count, result.seed, result.carry])[:8]}"


@dataclass(frozen=True)
class Leg:
    """One classifier against one attack, over all eps."""

    label: str
    classifier: Classifier
    data: ImageData
    attack: Attack
    threats: tuple[Threat, ...]
    seed: int
    carry: bool

    def rows(self, run: RunDir | None, shard_size: int, show: bool | None) -> list[SweepRow]:
        """The rows of this leg, from its shards."""
        name = f"sweep__{task_name(self.label, attack_text(self.attack), self.threats[-1], self.seed)}"
        task = open_task(run, name, self._config(in_run=run is not None), len(self.data), shard_size)
        watch = Watch(lambda shard: {str(self.threats[-1]): shard["eps"][-1]["outcome"]})
        title = f"{self.label}, {attack_text(self.attack)}"
        shards = work(task, lambda images: self.shard(images, watch), title, status=watch, show=show)
        return [self._row(place, shards) for place in range(len(self.threats))]

    def shard(self, images: range, watch: Watch) -> dict[str, Any]:
        """For each eps, rising, what became of these images."""
        device = device_of(self.classifier) if isinstance(self.classifier, nn.Module) else None
        x, y, ids = load(self.data, images, device)
        right = ~is_fooled(self.classifier, x, y)
        outcome = [ROBUST if good else MISCLASSIFIED for good in right.tolist()]
        stands, before = right.clone(), list(outcome)
        records: list[dict[str, Any]] = []
        for threat in self.threats:
            if not self.carry:
                stands, outcome = right.clone(), list(before)
            started, at = time.perf_counter(), stands.nonzero().squeeze(1)
            record = {"carried": int((right & ~stands).sum())}
            result = self._attacked(x[at], y[at], ids[at], threat, watch)
            stands[at] = ~result.fooled
            for place, word in zip(at.tolist(), result.outcome, strict=True):
                outcome[place] = word
            passes = {"forwards": int(result.forwards.sum()), "backwards": int(result.backwards.sum())}
            spent = {**passes, "seconds": time.perf_counter() - started}
            notes, square = notes_and_square(result)
            records.append({**record, **spent, "outcome": list(outcome), "notes": notes, "square": square})
        records[0]["forwards"] += len(x)  # the look at the clean images
        return {"eps": records}

    def _attacked(self, x: Tensor, y: Tensor, ids: Tensor, threat: Threat, watch: Watch) -> AttackResult:
        def tell(attack: str) -> None:
            watch(f"{attack}, {threat}")

        return self.attack.run(self.classifier, x, y, threat=threat, seed=self.seed, sample_ids=ids, watch=tell)

    def _row(self, place: int, shards: Sequence[Mapping[str, Any]]) -> SweepRow:
        parts, threat = [shard["eps"][place] for shard in shards], self.threats[place]
        outcome = tuple(word for part in parts for word in part["outcome"])
        count = len(outcome)
        right, robust = count - outcome.count(MISCLASSIFIED), outcome.count(ROBUST)
        return SweepRow(
            label=self.label,
            attack=attack_text(self.attack),
            threat=str(threat),
            eps=threat.eps,
            count=count,
            clean_accuracy=right / count,
            clean_interval=clopper_pearson(right, count),
            robust_accuracy=robust / count,
            interval=clopper_pearson(robust, count),
            outcome=outcome,
            notes=(*merge_notes(parts, count), *square_notes(sum(part["square"] for part in parts), count)),
            **{name: sum(part[name] for part in parts) for name in ("carried", "forwards", "backwards", "seconds")},
        )

    def _config(self, *, in_run: bool) -> dict[str, Any]:
        return {
            "lipforge": lipforge_version(),
            "model": identified(self.classifier, None, in_run=in_run),
            "data": data_identity(self.data),
            "attack": attack_text(self.attack),
            "norm": self.threats[0].norm,
            "eps": [threat.eps for threat in self.threats],
            "seed": self.seed,
            "carry": self.carry,
        }


def suspicions(rows: Sequence[SweepRow], attacks: Sequence[Attack]) -> list[str]:
    """Where an accuracy rises with eps, and where one step fools more images than many steps do."""
    one_step = {attack_text(attack) for attack in attacks if isinstance(attack, FGSM)}
    found = []
    for weak, strong in itertools.permutations(rows, 2):
        if weak.label != strong.label or sum(strong.robust) <= sum(weak.robust):
            continue
        larger = weak.attack == strong.attack and strong.eps > weak.eps
        longer = weak.eps == strong.eps and weak.attack in one_step and strong.attack not in one_step
        if larger or longer:
            found.append(
                f"{weak.label}: {sum(strong.robust)} of {strong.count} images stand against {strong.attack} at "
                f"{strong.threat}, but only {sum(weak.robust)} against {weak.attack} at {weak.threat}: "
                "masked gradients?"
            )
    return found
