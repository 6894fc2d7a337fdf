"""Pages and tables from the JSON of a run; never runs a model."""

from typing import TYPE_CHECKING, Any

from lipforge.reports.html import Report, ReportWarning, build_report, write_report
from lipforge.reports.tables import Column, Share, Table

if TYPE_CHECKING:
    from lipforge.reports.gallery import make_gallery


def __getattr__(name: str) -> Any:
    if name != "make_gallery":
        raise AttributeError(f"module 'lipforge.reports' has no attribute {name!r}")
    # Only this needs torch, which takes seconds to import.
    from lipforge.reports.gallery import make_gallery

    return make_gallery
