"""What forging does inside a model; knows nothing of attacks, adversarial images are handed in."""

from lipforge.analysis.run import analyse
from lipforge.results.analysis import Analysis, LayerReport, NetworkReport, ProductBound, Spread
