"""The sections of a report, in the order of the page; one without blocks, for want of data, is left out."""

from collections.abc import Callable

from lipforge.reports.blocks import Section
from lipforge.reports.read import Run
from lipforge.reports.sections.audit import evidence, verdict
from lipforge.reports.sections.corruptions import corrupted
from lipforge.reports.sections.curves import brackets, certified, robustness_curves, sweeps, tradeoff
from lipforge.reports.sections.evaluations import accuracy, cost, waterfall
from lipforge.reports.sections.improve import improvements
from lipforge.reports.sections.model import layers, pictures
from lipforge.reports.sections.overview import about, compare_runs, provenance
from lipforge.reports.sections.reproduction import reproductions

SECTIONS: tuple[Callable[[Run], Section], ...] = (
    verdict, reproductions, accuracy, improvements, tradeoff, robustness_curves, sweeps, corrupted, waterfall, evidence,
    layers, brackets, certified, pictures, cost, provenance,
)  # fmt: skip
