"""How often a classifier is right, clean and under attack, with how sure that is."""

from lipforge.evaluation.clean import CleanResult, clean_accuracy
from lipforge.evaluation.compare import Comparison, compare, images_to_decide, paired
from lipforge.evaluation.intervals import clopper_pearson, wilson
from lipforge.evaluation.plot import plot_tradeoff
from lipforge.evaluation.results import RobustResult
from lipforge.evaluation.robust import evaluate
from lipforge.evaluation.scores import RatioScore, SearchResult
from lipforge.evaluation.search import search_ratio
from lipforge.evaluation.sweep import SweepResult, SweepRow, sweep
from lipforge.evaluation.transfer import TransferResult, transfer

__all__ = [
    "CleanResult",
    "Comparison",
    "RatioScore",
    "RobustResult",
    "SearchResult",
    "SweepResult",
    "SweepRow",
    "TransferResult",
    "clean_accuracy",
    "clopper_pearson",
    "compare",
    "evaluate",
    "images_to_decide",
    "paired",
    "plot_tradeoff",
    "search_ratio",
    "sweep",
    "transfer",
    "wilson",
]
