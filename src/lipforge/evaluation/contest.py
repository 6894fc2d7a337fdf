"""Several classifiers that differ little, attacked on the same images, with the work of one serving the others.

The images are screened, shard by shard. The first entrant, the lead, is attacked in full, and what then looks near
enough is pushed as in step 4. An image of another entrant goes through this, cheapest first:

1. Every point found so far, for the lead or for entrants before, is tried: one forward pass each.
2. An image that fell on the lead, but to none of these points, is due for an attack in full.
3. An image that stood on the lead is spared, that is taken to stand, if it is far from the boundary. How far it is, is
   the gap (z_y minus the largest other logit) that the lead's attack left, corrected by how the two entrants differ at
   the lead's strongest point; far is REACH * `near` times the entrant's gap on the clean image.
4. From the lead's strongest point, the others are pushed toward the boundary of the entrant, through each view. Most of
   those that a full attack would fool fall to that. What both measures leave above `near` times the clean gap is
   spared, the rest is due. Without `near` all are pushed and none is spared; in l1 none is pushed.
5. A random share `audit` of the spared images is due all the same, and what falls is counted: that is how far the third
   and fourth steps can be trusted.

Few images of a shard are due, and a model is slow on a few images at a time. So they are attacked at the finish, those
of all shards together. At the end of each pass the points found for later entrants are tried on the earlier ones. All
of this depends on each image alone.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lipforge import rng
from lipforge.attacks import Attack
from lipforge.attacks.queries import check_labels, logits_of
from lipforge.batching import ImageData
from lipforge.evaluation.push import push
from lipforge.evaluation.screening import Records, Screened
from lipforge.evaluation.tally import Found, Shard, Tally, load
from lipforge.types import Classifier, Threat

NEAR, AUDIT = 0.03, 0.05
"""The defaults of the two shares above."""

REACH = 4.0
"""How many times farther than `near` an image may look and still be pushed."""


@dataclass(frozen=True)
class Entrant:
    """A classifier by its label, with all the views of it that are attacked; the first view is the one that counts."""

    label: str
    views: Mapping[str, Classifier]

    @property
    def classifier(self) -> Classifier:
        """The view that counts: every success is confirmed on it."""
        return next(iter(self.views.values()))


@dataclass(frozen=True)
class Lead:
    """What the full attack on the first entrant left behind: its tally, and the gap (N,) at its strongest points."""

    tally: Tally
    points: Tensor
    gap: Tensor
    gap_at_points: Tensor

    def again(self) -> "Lead":
        """The same for a contest that comes later, whose passes start from 0."""
        return replace(self, tally=self.tally.fresh())


@dataclass(frozen=True)
class Contest:
    """All it takes to compute any shard of a search."""

    entrants: tuple[Entrant, ...]
    data: ImageData
    attack: Attack
    threat: Threat
    seed: int
    near: float | None
    audit: float
    device: torch.device | None = None
    leads: dict[int, Lead] | None = None
    """Where there will be more contests with the same lead: what it did, by the first image of a shard."""
    lead_counts: bool = True
    """Whether the attack on the lead is counted: not if a contest before has, even where it must be repeated."""
    watch: Callable[[str], None] = lambda attack: None
    """Told which attack on which entrant begins."""

    def screen(self, images: range) -> Records:
        """What became of these images, what it cost, and which of them are due for an attack in full."""
        started = time.perf_counter()
        shard = load(self.data, images, self.device)
        loading = time.perf_counter() - started
        lead = self._lead(shard, images.start)
        lead.tally.seconds += loading
        tallies = [lead.tally]
        pool = [Found(self.entrants[0].label, torch.arange(len(shard.x), device=shard.x.device), lead.points)]
        for entrant in self.entrants[1:]:
            tally = Tally(entrant.label, entrant.classifier, shard)
            with tally.timed():
                self._judge(tally, entrant, lead, pool, shard)
            tallies.append(tally)
            pool.append(tally.found())
        _try_later(tallies, pool)
        return {tally.label: {"first": images.start, **tally.record()} for tally in tallies}

    def finish(self, images: Sequence[int], before: Mapping[str, Screened]) -> Records:
        """What became of these images, of which each is due for some entrant, and what the rest of the work cost."""
        started = time.perf_counter()
        shard = load(self.data, images, self.device)
        tallies: list[Tally] = []
        pool: list[Found] = []
        for entrant in self.entrants:
            left = before[entrant.label]
            tally = Tally(entrant.label, entrant.classifier, shard, [left.outcome[image] for image in images])
            with tally.timed():
                for found in pool:
                    tally.attempt(found)
                drawn = tally.stands & shard.among(left.drawn)
                self._assault(tally, entrant, (tally.stands & shard.among(left.due)).nonzero().squeeze(1), shard)
                tally.checked, tally.failed = int(drawn.sum()), int((drawn & ~tally.stands).sum())
            tallies.append(tally)
            pool.append(tally.found())
        _try_later(tallies, pool)
        tallies[0].seconds += time.perf_counter() - started - sum(tally.seconds for tally in tallies)  # loading
        return {tally.label: tally.record() for tally in tallies}

    def clean(self, images: range) -> dict[str, dict[str, Any]]:
        """For each entrant, by label, which of these images it gets right, and the seconds that took."""
        shard, found = load(self.data, images, self.device), {}
        for entrant in self.entrants:
            started = time.perf_counter()
            right = _right(entrant.classifier, shard)
            found[entrant.label] = {"right": right, "seconds": time.perf_counter() - started}
        return found

    def _lead(self, shard: Shard, first: int) -> Lead:
        if self.leads is not None and first in self.leads:
            return self.leads[first].again()
        entrant = self.entrants[0]
        tally = Tally(entrant.label, entrant.classifier, shard)
        with tally.timed():
            self._assault(tally, entrant, tally.stands.nonzero().squeeze(1), shard)
            # The others will be pushed from these points, so the lead is too.
            self._push(tally, entrant, tally.points, -tally.closest <= REACH * self._close(tally), shard)
            at_points = tally.gap_at(tally.points)
        lead = Lead(tally, tally.points.clone(), -tally.closest, at_points)
        if self.leads is not None:
            self.leads[first] = lead.again()
        return lead if self.lead_counts else lead.again()

    def _judge(self, tally: Tally, entrant: Entrant, lead: Lead, pool: list[Found], shard: Shard) -> None:
        """The five steps for one entrant, up to who is due."""
        gap = tally.attempt(pool[0])
        for found in pool[1:]:
            tally.attempt(found)
        stood, expected = lead.tally.stood, lead.gap + gap - lead.gap_at_points
        close = self._close(tally)
        pushed = self._push(tally, entrant, lead.points, stood & (expected <= REACH * close), shard)
        far = stood & (torch.minimum(expected, pushed) > close)
        drawn = (
            rng.uniform(self.seed, shard.ids, stream=f"search-audit/{entrant.label}", shape=(1,)).squeeze(1)
            < self.audit
        )
        tally.due, tally.drawn, tally.spared = ~far | drawn, far & drawn, far & ~drawn

    def _close(self, tally: Tally) -> Tensor:
        """Below which gap (N,) an image is near the boundary."""
        gap = tally.clean_gap
        return torch.full_like(gap, torch.inf) if self.near is None else self.near * gap

    def _push(self, tally: Tally, entrant: Entrant, points: Tensor, rows: Tensor, shard: Shard) -> Tensor:
        """Push the lead's strongest points for these rows (N,): the gap (N,) left, infinite where none was pushed.

        Where a gradient is 0 a push says nothing, so nothing is left: such an image is to be attacked in full.
        """
        gap = torch.full_like(tally.clean_gap, torch.inf)
        # The base may be its own second view: the same push again would find the same.
        views = {id(view): view for view in entrant.views.values()}.values()
        for view in views if self.threat.norm != "l1" else ():
            self.watch(f"{entrant.label}: push")
            at = (rows & tally.stands).nonzero().squeeze(1)
            pushed = push(view, points[at], shard.x[at], shard.y[at], shard.ids[at], self.threat)
            tally.forwards += pushed.forwards * len(at)
            tally.backwards += pushed.backwards * len(at)
            gap = torch.minimum(gap, tally.attempt(Found(entrant.label, at, pushed.points)))
            gap[at[pushed.stuck]] = -torch.inf
        return gap

    def _assault(self, tally: Tally, entrant: Entrant, at: Tensor, shard: Shard) -> None:
        """Attack these images through each view in turn."""
        tally.attacked += len(at)
        for number, view in enumerate(entrant.views.values()):
            at = at[tally.stands[at]]
            if len(at) == 0:
                break
            # Another seed for each view: a second look from the same starts would see less.
            result = self.attack.run(
                view,
                shard.x[at],
                shard.y[at],
                threat=self.threat,
                seed=self.seed + number,
                sample_ids=shard.ids[at],
                watch=lambda attack: self.watch(f"{entrant.label}: {attack}"),
            )
            tally.take(at, result, confirm=number > 0)


def _try_later(tallies: Sequence[Tally], pool: Sequence[Found]) -> None:
    """Try the points found for later entrants on the earlier ones."""
    for place, tally in enumerate(tallies):
        with tally.timed():
            for found in pool[place + 1 :]:
                tally.attempt(found)


@torch.no_grad()
def _right(classifier: Classifier, shard: Shard) -> list[bool]:
    logits = logits_of(classifier, shard.x, shard.ids)
    check_labels(shard.y, logits.shape[1])
    return (logits.argmax(dim=1) == shard.y).tolist()
