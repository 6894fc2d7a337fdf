"""Pages and tables from the JSON of a run; never runs a model."""

from lipforge.reports.gallery import Gallery, GalleryItem, make_gallery
from lipforge.reports.html import Report, ReportWarning, build_report, write_report
from lipforge.reports.tables import Column, Share, Table

__all__ = [
    "Column",
    "Gallery",
    "GalleryItem",
    "Report",
    "ReportWarning",
    "Share",
    "Table",
    "build_report",
    "make_gallery",
    "write_report",
]
