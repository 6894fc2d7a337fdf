"""The search for the ratio c_r: clean accuracy first, then robust accuracy of the best and its neighbours."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from torch import nn

from lipforge.attacks import AnyAttack, Fast
from lipforge.batching import LabelledSource
from lipforge.errors import InputError
from lipforge.evaluation.robust import attack_config, checked_attack, joined, prepared_once, setting_of, totals
from lipforge.forge import forged, forges, plain, set_ratio_, straight_through
from lipforge.forge.insert import require_forges
from lipforge.results import ROBUST, RatioScore, SearchResult, Setting
from lipforge.runs import SHARD_SIZE, Experiment, RunDir, Shard, Watch, change_of, digest_of
from lipforge.runs.identity import image_digests
from lipforge.search import score as scoring
from lipforge.search.score import label_of
from lipforge.search.screen import RECHECK, SKIP_ABOVE, Candidate, Records, Screening
from lipforge.types import Classifier, Threat, check_threat

RATIOS = (2.0**-8, 2.0**-7, 2.0**-6)

ROUND, ROUNDS = 250, 4  # about how many images make a round, and the most rounds there are, where nobody says otherwise

Metric = Literal["non-adaptive", "union"]

Views = Callable[[Setting], Mapping[str, Classifier]]
"""The classifiers to attack at a setting; the first is the one that counts. All settings get the same number."""


def choose_ratio(
    model: nn.Module | Views,
    data: LabelledSource,
    *,
    threat: Threat,
    ratios: Sequence[float] = RATIOS,
    attack: AnyAttack | None = None,
    metric: Metric = "union",
    groups: Sequence[str] | bool = False,
    skip_above: float | None = SKIP_ABOVE,
    recheck: float = RECHECK,
    all_ratios: bool = False,
    run: RunDir | None = None,
    seed: int = 0,
    shard_size: int = SHARD_SIZE,
    rounds: int | None = None,
    show_progress: bool | None = None,
) -> SearchResult:
    """The ratio to use for a forged and calibrated `model`, found on validation images, with the reason and all scores.

    Clean accuracy of all `ratios` comes first; the best one and its neighbours are then attacked together with the base
    (ratio 0), or all of them with `all_ratios`. The metric "non-adaptive" attacks the forged model as it is; "union"
    also by BPDA, with a backward pass that ignores the masks, and attacks the base a second time instead. The attack is
    `fast` unless told otherwise. With skip_above=None every image of every ratio is attacked in full; `skip_above` and
    `recheck` are explained in `lipforge.search.screen`. After each of `rounds` a ratio that is significantly worse than
    the best is stopped. With `groups`, globs of site names or True for the stages of the network, each group gets a
    ratio of its own: group by group, each other ratio (and 0) is tried for it alone, kept if more images are robust.

    The model's ratios are afterwards what they were; `set_ratio_(model, result.chosen)` applies the choice. For what
    is no model but has a ratio, pass a function that makes its `Views` in place of the model.
    """
    check_threat(threat)
    if metric not in get_args(Metric):
        raise InputError(f"metric must be {' or '.join(get_args(Metric))}, got {metric!r}")
    if (skip_above is not None and not skip_above > 0) or not 0 <= recheck <= 1:
        raise InputError(f"skip_above must be above 0 (or None) and recheck in [0, 1], got {skip_above} and {recheck}")
    candidates = sorted({float(ratio) for ratio in ratios if ratio != 0})  # 0 is the base, which is always there
    if not candidates or not 0 < candidates[0] <= candidates[-1] <= 1:
        raise InputError(f"ratios must be numbers in (0, 1], at least one, got {list(ratios)}")
    attack = Fast() if attack is None else checked_attack(attack, run)
    with _opened(model, metric, groups) as (views, named):
        base = views(0.0)
        experiment = Experiment.open(data, *base.values(), run=run, shard_size=shard_size, show_progress=show_progress)
        rounds = min(max(len(experiment.data) // ROUND, 1), ROUNDS) if rounds is None else rounds
        if rounds < 1:
            raise InputError(f"rounds must be at least 1, got {rounds}")
        screening = Screening((), attack, threat, seed, skip_above, recheck, base_attacks={} if named else None)
        search = _Search(experiment, views, screening, rounds, {"base": Candidate("base", base)})
        scores = search.scores(candidates, named, all_ratios=all_ratios)
    chosen, reason = scoring.choose(scores)
    result = SearchResult(
        chosen=chosen,
        reason=reason,
        scores=tuple(scores),
        metric=metric,
        **setting_of(experiment, attack, threat, seed),
        count=len(experiment.data),
        skip_above=skip_above,
        recheck=recheck,
        **totals([vars(score) for score in scores]),
        notes=tuple(scoring.search_notes(scores)),
        images=image_digests(experiment.data),
    )
    return experiment.finish("search", result)


@contextmanager
def _opened(
    model: nn.Module | Views, metric: Metric, groups: Sequence[str] | bool
) -> Iterator[tuple[Views, tuple[str, ...]]]:
    """The views of a model and its groups of sites; the model's ratios are afterwards what they were."""
    named = () if isinstance(groups, bool) else tuple(groups)
    if not isinstance(model, nn.Module):
        if groups is True:
            raise InputError("groups=True takes the stages of a model; for a function name the groups")
        yield model, named
        return
    before = {name: forge.ratio for name, forge in require_forges(model).items()}
    if not any(bool((forge.bound > 0).any()) for forge in forges(model).values()):
        raise InputError("the model's forged functions have no bounds yet; calibrate them with forge_ or calibrate_")
    if groups is True:
        named = network_stages(list(before))
    for name in before if named else ():
        if not any(name == glob or fnmatchcase(name, glob) for glob in named):
            raise InputError(f"groups must cover every site, but none of {', '.join(named)} matches '{name}'")
    try:
        yield views_of(model, metric), named
    finally:
        set_ratio_(model, before)


def views_of(model: nn.Module, metric: Metric) -> Views:
    """For each setting the classifiers to attack; making them sets the model's ratios."""

    def views(setting: Setting) -> Mapping[str, Classifier]:
        if not setting:
            base = plain(model)
            return {"base": base} if metric == "non-adaptive" else {"base": base, "base again": base}
        set_ratio_(model, setting)
        made: dict[str, Classifier] = {"forged": forged(model)}
        return made if metric == "non-adaptive" else {**made, "straight_through": straight_through(model)}

    return views


def network_stages(names: Sequence[str]) -> tuple[str, ...]:
    """Globs for the stages of a network: the shortest name prefixes that tell at least two groups of sites apart.

    >>> network_stages(["layer1.0.conv1", "layer1.0.conv2", "layer2.0.conv1"])
    ('layer1.*', 'layer2.*')
    """
    parts = [name.split(".") for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        heads = list(dict.fromkeys(tuple(part[:length]) for part in parts))
        if len(heads) > 1:
            return tuple(".".join(head) + ("" if list(head) in parts else ".*") for head in heads)
    return tuple(names)


@dataclass(frozen=True)
class _Search:
    """The parts of a search, each a task of its own."""

    experiment: Experiment
    views: Views
    screening: Screening
    rounds: int
    candidates: dict[str, Candidate] = field(default_factory=dict)
    folded: dict[int, Classifier] = field(default_factory=dict)

    def scores(self, ratios: Sequence[float], groups: Sequence[str], *, all_ratios: bool) -> list[RatioScore]:
        """The base, then single ratios from small to large, then the mappings in the order they were tried."""
        base, *clean = self.clean([0.0, *ratios])
        picked = clean if all_ratios else scoring.with_neighbours(clean)
        attacked = {score.label: score for score in self.robust([base, *picked])}
        scores = [attacked.get(score.label, score) for score in (base, *clean)]
        return self.by_group(scores, groups, (0.0, *ratios)) if groups else scores

    def clean(self, settings: Sequence[Setting], name: str = "search-clean") -> list[RatioScore]:
        screening = self._between(settings)
        shards = self._work(name, screening, screening.clean)
        scores = (scoring.clean_score(setting, [shard[label_of(setting)] for shard in shards]) for setting in settings)
        return [replace(score, change=change_of(self.candidates[score.label].classifier)) for score in scores]

    def robust(self, scores: Sequence[RatioScore], name: str = "search") -> list[RatioScore]:
        """The same scores, attacked, the base first; a ratio that is significantly worse is stopped."""
        records: dict[str, list[dict[str, Any]]] = {score.label: [] for score in scores}
        running, rounds, watch = list(scores), self._rounds(), Watch(lambda shard: {})
        for number, images in enumerate(rounds, start=1):
            screening = self._between([score.ratio for score in running])
            screening = replace(screening, watch=watch, count_base=name == "search")
            title = f"{name}: round {number} of {len(rounds)}"
            for label, found in self._round(f"{name}-{number}", screening, images, title, watch).items():
                records[label] += found
                # Only now: until a round is finished, some of what looks robust has not been attacked in full.
                watch.add(label, joined(found, "outcome"))
            running = scoring.still_running(running, records)
        base = [word == ROBUST for word in joined(records[scores[0].label], "outcome")]
        count = len(self.experiment.data)
        return [scoring.attacked_score(score, records[score.label], base, count) for score in scores]

    def by_group(self, scores: list[RatioScore], groups: Sequence[str], options: Sequence[float]) -> list[RatioScore]:
        """Those scores and one for every mapping of groups to ratios that was tried, one group after the other."""
        start = scoring.best_of(scores).ratio
        assert not isinstance(start, Mapping)
        current: dict[str, float] = dict.fromkeys(groups, start)
        for number, group in enumerate(groups, start=1):
            others = [{**current, group: ratio} for ratio in options if ratio != current[group]]
            settings = [setting for setting in others if any(setting.values())]
            if not settings:
                continue
            name = f"search-group-{number}"
            base, *tried = self.robust([scores[0], *self.clean(settings, f"{name}-clean")], name)
            scores = scoring.with_base([*scores, *tried], base)
            best = scoring.best_of(scores).ratio
            current = dict(best) if isinstance(best, Mapping) else dict.fromkeys(groups, best)
        return scores

    def _between(self, settings: Sequence[Setting]) -> Screening:
        for one in settings:
            if label_of(one) not in self.candidates:
                self.candidates[label_of(one)] = Candidate(label_of(one), self.views(one))
        chosen = tuple(self.candidates[label_of(one)] for one in settings)
        return replace(self.screening, candidates=chosen, prepared=self._prepared)

    def _rounds(self) -> list[range]:
        """The images of each round: whole shards, about as many each."""
        count, size = len(self.experiment.data), self.experiment.shard_size
        shards = -(-count // size)
        rounds = min(self.rounds, shards)
        ends = [number * shards // rounds * size for number in range(rounds + 1)]
        return [range(first, min(last, count)) for first, last in itertools.pairwise(ends)]

    def _round(
        self, name: str, screening: Screening, images: range, title: str, watch: Watch
    ) -> dict[str, list[dict[str, Any]]]:
        """The records of each candidate on these images: screened, and attacked in full where they are pending."""
        shards = self._work(name, screening, screening.screen, images, title, watch)
        pending = scoring.pending_images(shards)
        before = {label: scoring.pending_of(shards, label) for label in shards[0]}

        def finish(shard: Shard) -> Records:
            return screening.finish(shard, before)

        # In the name: if a damaged shard is screened again elsewhere and rounds differently, this is other work.
        keys = ("outcome", "pending", "drawn")
        left = digest_of([[record[key] for key in keys] for shard in shards for record in shard.values()])
        name, title = f"{name}-pending-{left[:8]}", f"{title}, in full"
        finished = self._work(name, screening, finish, pending, title, watch) if pending else []
        return {label: scoring.final_records(shards, finished, pending, label) for label in shards[0]}

    def _work(
        self,
        name: str,
        screening: Screening,
        compute: Callable[[Shard], Mapping[str, Any]],
        positions: Sequence[int] | None = None,
        title: str = "",
        watch: Watch | None = None,
    ) -> list[dict[str, Any]]:
        config = {
            **attack_config(screening.attack, screening.threat, screening.seed),
            "views": {candidate.label: list(candidate.views) for candidate in screening.candidates},
            "skip_above": screening.skip_above,
            "recheck": screening.recheck,
            "rounds": self.rounds,
            "first": positions[0] if positions else 0,
        }
        models = {candidate.label: candidate.classifier for candidate in screening.candidates}
        task = self.experiment.task(name, models, config, positions=positions)
        return self.experiment.work(task, compute, positions=positions, title=title, status=watch)

    def _prepared(self, view: Classifier) -> Classifier:
        """What attacks on a view search on: its folded copy, made once."""
        if id(view) not in self.folded:
            self.folded[id(view)] = prepared_once(self.experiment, self.screening.attack, view)()
        return self.folded[id(view)]
