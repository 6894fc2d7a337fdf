"""Every result as one frozen dataclass that becomes JSON and comes back; nothing here imports torch."""

from typing import Any

from lipforge.errors import InputError
from lipforge.records import from_builtins, to_builtins
from lipforge.results.analysis import Analysis, LayerReport, NetworkReport, ProductBound, Spread
from lipforge.results.audit import (
    VERDICTS,
    AuditNote,
    AuditReport,
    AuditRow,
    Check,
    Effort,
    Verdict,
    VerdictForm,
    corrected,
    holm_objection,
)
from lipforge.results.bracket import CERTIFIED, UNKNOWN, BracketComparison, BracketResult, compare_brackets
from lipforge.results.certification import CertifiedImage, CertifyCost, CertifyResult, CurvePoint, curve_point
from lipforge.results.change import Change
from lipforge.results.corruption import (
    CorruptComparison,
    CorruptionCell,
    CorruptionDifference,
    CorruptResult,
    compare_corrupted,
)
from lipforge.results.curve import CurveComparison, CurveResult, RadiusComparison, compare_curves
from lipforge.results.demo import DemoResult, Gallery, GalleryItem
from lipforge.results.evaluation import (
    MISCLASSIFIED,
    ROBUST,
    CleanResult,
    Estimate,
    Note,
    RobustResult,
    Stage,
    StageKey,
    SweepResult,
    SweepRow,
    TransferResult,
    common_order,
    merge_notes,
    numbered,
)
from lipforge.results.export import ExportResult, Parity
from lipforge.results.improve import CandidateScore, Improvement
from lipforge.results.reproduction import ReproducedRow, Reproduction
from lipforge.results.search import RatioScore, SearchResult, Setting
from lipforge.statistics import Comparison

FORMAT = 2  # the version of the JSON of results and run directories
OLDER = (
    "was written in format {found} by another version of lipforge, this one has format {format}: read it with the "
    "version that wrote it, or run the command again with a new run directory"
)
"""What is said of a file of another format; the way out is in it."""

RESULTS: dict[str, type[Any]] = {
    result.kind: result
    for result in (Analysis, AuditReport, BracketComparison, BracketResult, CertifyCost, CertifyResult, CleanResult,
                   Comparison, CorruptComparison, CorruptResult, CurveComparison, CurveResult, DemoResult, Estimate,
                   ExportResult, Gallery, Improvement, Reproduction, RobustResult, SearchResult, SweepResult,
                   TransferResult)
}  # fmt: skip


def record(result: Any) -> dict[str, Any]:
    """A result as a JSON object that says what it is: its kind, the format, and its fields.

    >>> record(CleanResult(10, 7, 0.7, (0.35, 0.93)))["kind"]
    'clean'
    """
    if type(result) not in RESULTS.values():
        raise InputError(f"result must be one of lipforge.results, got {type(result).__name__}")
    return {"kind": result.kind, "format": FORMAT, **to_builtins(result)}


def from_record(values: Any, where: str) -> Any:
    """The result that `record` made `values` of, every field checked; an error begins with `where`, a file's name."""
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str):
        raise InputError(f"{where} has no 'kind': it is no result of lipforge")
    if values.get("format") != FORMAT:
        raise InputError(f"{where} {OLDER.format(found=values.get('format'), format=FORMAT)}")
    if kind not in RESULTS:
        raise InputError(f"{where} is of the kind {kind!r}; known are {', '.join(RESULTS)}")
    return from_builtins(RESULTS[kind], values, where)
