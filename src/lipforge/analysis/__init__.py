"""What forging does inside a model; knows nothing of attacks, adversarial images are handed in."""

<<<<<<< HEAD
from lipforge.analysis.layers import analyse
=======
from lipforge.analysis.run import analyse
>>>>>>> wt-s-forge
from lipforge.results.analysis import Analysis, LayerReport, NetworkReport, ProductBound, Spread
