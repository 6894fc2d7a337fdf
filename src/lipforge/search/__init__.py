"""Which ratio to use: candidates that differ little are attacked together, and share what they find."""

from lipforge.evaluation.plots import check_picture
from lipforge.search.choose import RATIOS, Metric, choose_ratio
from lipforge.search.score import plot_tradeoff
from lipforge.search.screen import RECHECK, SKIP_ABOVE
