"""Which ratio to use: candidates that differ little are attacked together, and share what they find."""

from lipforge.search.choose import RATIOS, Metric, choose_ratio
from lipforge.search.score import check_picture, plot_tradeoff
from lipforge.search.screen import RECHECK, SKIP_ABOVE
