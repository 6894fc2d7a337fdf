"""The sections of a report, in the order of the page; each is None for a run without its data."""

from collections.abc import Callable

from lipforge.reports.blocks import Section
from lipforge.reports.read import Run
from lipforge.reports.sections.accuracy import accuracy
from lipforge.reports.sections.attacks import cost, waterfall
from lipforge.reports.sections.certified import certified
from lipforge.reports.sections.layers import layers
from lipforge.reports.sections.overview import about, compare_runs
from lipforge.reports.sections.pictures import pictures
from lipforge.reports.sections.provenance import provenance
from lipforge.reports.sections.sweeps import sweeps
from lipforge.reports.sections.tradeoff import tradeoff
from lipforge.reports.sections.verdict import evidence, verdict

SECTIONS: tuple[Callable[[Run], Section | None], ...] = (
    verdict,
    accuracy,
    tradeoff,
    sweeps,
    waterfall,
    evidence,
    layers,
    certified,
    pictures,
    cost,
    provenance,
)

__all__ = ["SECTIONS", "about", "compare_runs"]
