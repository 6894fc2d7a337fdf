"""How often a classifier is right, with how sure that is."""

from lipforge.evaluation.clean import CleanResult, clean_accuracy
from lipforge.evaluation.intervals import clopper_pearson

__all__ = ["CleanResult", "clean_accuracy", "clopper_pearson"]
