"""The search for the ratio c_r: clean accuracy first, then robust accuracy of the best and its neighbours."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from lipforge.attacks import Attack
from lipforge.batching import ImageData
from lipforge.errors import InputError
from lipforge.evaluation.contest import AUDIT, NEAR, Contest, Entrant
from lipforge.evaluation.identity import attack_text
from lipforge.evaluation.scores import (
    RatioScore,
    SearchResult,
    Setting,
    best_of,
    both,
    by_ratio,
    choose,
    clean_score,
    doubts,
    hopeful,
    label_of,
    neighbourhood,
    rebased,
    robust_fields,
    stands_of,
)
from lipforge.evaluation.screening import Records, due_of, screened, settled
from lipforge.evaluation.watch import Watch
from lipforge.pairs import as_data
from lipforge.ranks import is_first
from lipforge.runs import Compute, RunDir, open_task, work
from lipforge.runs.environment import lipforge_version
from lipforge.runs.identity import data_identity, identified
from lipforge.runs.tasks import digest_of
from lipforge.types import Classifier, Threat

RATIOS = (2.0**-8, 2.0**-7, 2.0**-6)

ROUND, ROUNDS = 250, 4
"""About how many images make a round, and the most rounds there are, where nobody says otherwise."""

Views = Callable[[Setting], Mapping[str, Classifier]]
"""The classifiers to attack at a setting; the first is the one that counts. All settings get the same number."""


def search_ratio(
    views: Views,
    data: ImageData | tuple[Tensor, Tensor],
    attack: Attack,
    threat: Threat,
    *,
    metric: str,
    ratios: Sequence[float] = RATIOS,
    groups: Sequence[str] = (),
    near: float | None = NEAR,
    audit: float = AUDIT,
    all_ratios: bool = False,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = 100,
    rounds: int | None = None,
    device: torch.device | None = None,
    show: bool | None = None,
) -> SearchResult:
    """The ratio that keeps most images of `data`, among the one with the best clean accuracy and its neighbours.

    With `all_ratios` every ratio is attacked, whatever its clean accuracy. Images are worked on in `rounds`, by default
    up to four of about 250 images or more; after each, a ratio that is significantly worse than the best is dropped.
    With `groups` of sites the search goes on from the best ratio: group by group, each other ratio (and 0) is tried
    for that group alone and kept if more images stand. `near` and `audit` are explained in
    `lipforge.evaluation.contest`; without `near` every image of every ratio is attacked in full.
    """
    candidates = _candidates(ratios)
    if (near is not None and not near > 0) or not 0 <= audit <= 1:
        raise InputError(f"near must be above 0 (or None) and audit lie in [0, 1], got {near} and {audit}")
    source = as_data(data)
    rounds = min(max(len(source) // ROUND, 1), ROUNDS) if rounds is None else rounds
    if shard_size < 1 or rounds < 1:
        raise InputError(f"shard_size and rounds must be at least 1, got {shard_size} and {rounds}")
    contest = Contest((), source, attack, threat, seed, near, audit, device, {} if groups else None)
    search = _Search(views, contest, run, shard_size, rounds, show)
    clean = search.clean([0.0, *candidates])
    picked = clean[1:] if all_ratios else neighbourhood(clean[1:])
    scores = search.robust([clean[0], *picked])
    scores += [score for score in clean[1:] if score not in picked]
    if groups:
        scores = search.refine(scores, groups, (0.0, *candidates))
    result = search.result([scores[0], *sorted(scores[1:], key=by_ratio)], metric)
    if run is not None and is_first():
        run.write_result("search", result)
    return result


@dataclass(frozen=True)
class _Search:
    """The stages of a search, each a piece of work that a run directory can keep."""

    views: Views
    contest: Contest
    run: RunDir | None
    shard_size: int
    rounds: int
    show: bool | None
    made: dict[str, Entrant] = field(default_factory=dict)

    def clean(self, settings: Sequence[Setting], name: str = "search-clean") -> list[RatioScore]:
        """The clean accuracy of each setting."""
        contest = self._between(settings)
        shards = self._work(name, contest, contest.clean, len(contest.data))
        return [clean_score(setting, [shard[label_of(setting)] for shard in shards]) for setting in settings]

    def robust(self, scores: Sequence[RatioScore], name: str = "search") -> list[RatioScore]:
        """The same scores, attacked; the first is the base, and the others are dropped when they are hopeless."""
        shards: dict[str, list[dict[str, Any]]] = {score.label: [] for score in scores}
        alive, blocks, watch = list(scores), self._blocks(), Watch(lambda shard: {})
        for number, images in enumerate(blocks, start=1):
            contest = self._between([score.ratio for score in alive])
            contest = replace(contest, watch=watch, lead_counts=name == "search")
            title = f"{name}: round {number} of {len(blocks)}"
            for label, records in self._round(f"{name}-{number}", contest, images, title, watch).items():
                shards[label] += records
                # Only now: until a round is finished, some of what looks robust has not been attacked in full.
                for record in records:
                    watch.add(label, record["outcome"])
            alive = hopeful(alive, shards)
        base = stands_of(shards[scores[0].label])
        return [self._scored(score, shards[score.label], base) for score in scores]

    def refine(self, scores: list[RatioScore], groups: Sequence[str], options: Sequence[float]) -> list[RatioScore]:
        """Those scores and one for every mapping of groups to ratios that was tried, coordinate by coordinate."""
        start = best_of(scores).ratio
        assert not isinstance(start, Mapping)
        current: dict[str, float] = dict.fromkeys(groups, start)
        found = list(scores)
        for number, group in enumerate(groups):
            others = [{**current, group: ratio} for ratio in options if ratio != current[group]]
            trials = [trial for trial in others if any(trial.values())]
            if not trials:
                continue
            name = f"search-group-{number + 1}"
            base, *tried = self.robust([found[0], *self.clean(trials, f"{name}-clean")], name)
            found = rebased([both(found[0], base), *found[1:], *tried])
            best = best_of(found).ratio
            current = dict(best) if isinstance(best, Mapping) else dict.fromkeys(groups, best)
        return found

    def result(self, scores: Sequence[RatioScore], metric: str) -> SearchResult:
        """All of it, with the choice."""
        contest = self.contest
        chosen, reason = choose(scores)
        return SearchResult(
            chosen=chosen,
            reason=reason,
            scores=tuple(scores),
            metric=metric,
            attack=attack_text(contest.attack),
            threat=str(contest.threat),
            norm=contest.threat.norm,
            eps=contest.threat.eps,
            data=contest.data.name,
            seed=contest.seed,
            count=len(contest.data),
            near=contest.near,
            audit=contest.audit,
            forwards=sum(score.forwards for score in scores),
            backwards=sum(score.backwards for score in scores),
            seconds=sum(score.seconds for score in scores),
            notes=tuple(doubts(scores)),
        )

    def _between(self, settings: Sequence[Setting]) -> Contest:
        for one in settings:
            self.made.setdefault(label_of(one), Entrant(label_of(one), self.views(one)))
        return replace(self.contest, entrants=tuple(self.made[label_of(one)] for one in settings))

    def _blocks(self) -> list[range]:
        """The images of each round: whole shards, about as many each."""
        count, size = len(self.contest.data), self.shard_size
        shards = -(-count // size)
        rounds = min(self.rounds, shards)
        ends = [number * shards // rounds * size for number in range(rounds + 1)]
        return [range(first, min(last, count)) for first, last in itertools.pairwise(ends)]

    def _round(
        self, name: str, contest: Contest, images: range, title: str, watch: Watch
    ) -> dict[str, list[dict[str, Any]]]:
        """The records of each entrant on these images: screened, and then finished where images are due."""

        def screen(part: range) -> Records:
            return contest.screen(range(images.start + part.start, images.start + part.stop))

        shards = self._work(name, contest, screen, len(images), {"first": images.start}, title, watch)
        due, before = due_of(shards), {label: screened(shards, label) for label in shards[0]}

        def finish(part: range) -> Records:
            return contest.finish(due[part.start : part.stop], before)

        # In the name: if a damaged shard is screened again elsewhere and rounds differently, this is other work.
        left = [[record[key] for key in ("outcome", "due", "drawn")] for shard in shards for record in shard.values()]
        name, title = f"{name}-due-{digest_of(left)[:8]}", f"{title}, in full"
        finished = self._work(name, contest, finish, len(due), {}, title, watch) if due else []
        return {label: settled(shards, finished, due, label) for label in shards[0]}

    def _work(
        self,
        name: str,
        contest: Contest,
        compute: Compute,
        count: int,
        about: Mapping[str, Any] | None = None,
        title: str = "",
        watch: Watch | None = None,
    ) -> list[dict[str, Any]]:
        """The shards of `count` images, as `compute` makes them."""
        config = {
            "lipforge": lipforge_version(),
            "entrants": {entrant.label: self._identity(entrant) for entrant in contest.entrants},
            "data": data_identity(contest.data),
            "attack": attack_text(contest.attack),
            "threat": {"norm": contest.threat.norm, "eps": contest.threat.eps},
            "seed": contest.seed,
            "near": contest.near,
            "audit": contest.audit,
            "rounds": self.rounds,
            **(about or {}),
        }
        task = open_task(self.run, name, config, count, self.shard_size)
        return work(task, compute, title or name, status=watch, show=self.show)

    def _identity(self, entrant: Entrant) -> dict[str, Any]:
        return {"views": list(entrant.views), **identified(entrant.classifier, None, in_run=self.run is not None)}

    def _scored(self, score: RatioScore, shards: Sequence[Mapping[str, Any]], base: Sequence[bool]) -> RatioScore:
        found = robust_fields(shards, base)
        for cost in ("forwards", "backwards", "seconds"):  # of what was asked before
            found[cost] += getattr(score, cost)
        measured = replace(score, **found)
        if not score.ratio:
            return replace(measured, against_base=None)
        return replace(measured, status="attacked" if measured.count == len(self.contest.data) else "stopped")


def _candidates(ratios: Sequence[float]) -> list[float]:
    """The ratios in order, each once; 0 is the base, which is always there."""
    found = sorted({float(ratio) for ratio in ratios if ratio != 0})
    if not found or not 0 < found[0] <= found[-1] <= 1:
        raise InputError(f"ratios must be numbers in (0, 1], at least one, got {list(ratios)}")
    return found
