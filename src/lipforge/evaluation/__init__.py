"""How often a classifier is right, clean and under attack, with how sure that is; it cannot tell base from forged."""

from lipforge.evaluation.curves import check_minimises, comparison_name, curve, curve_name, curve_threat
from lipforge.evaluation.dtypes import in_dtype
from lipforge.evaluation.estimates import PROBE, estimate
from lipforge.evaluation.plots import check_picture, plot_corruptions, plot_curves
from lipforge.evaluation.robust import clean_accuracy, evaluate, task_name
from lipforge.evaluation.sizes import BATCH_SIZE, BatchSize, parse_batch_size
from lipforge.evaluation.sweeps import sweep, sweep_name
from lipforge.evaluation.transfers import REFINE, score_saved, transfer
