"""How often a classifier is right, clean and under attack, with how sure that is."""

from lipforge.evaluation.clean import CleanResult, clean_accuracy
from lipforge.evaluation.intervals import clopper_pearson, wilson
from lipforge.evaluation.results import RobustResult
from lipforge.evaluation.robust import evaluate

__all__ = ["CleanResult", "RobustResult", "clean_accuracy", "clopper_pearson", "evaluate", "wilson"]
