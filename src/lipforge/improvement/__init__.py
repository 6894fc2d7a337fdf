"""Post-hoc parts that may make a trained model harder to fool, and the choice among them on validation images."""

from lipforge.improvement.affine import AffineFit, fit_affine
from lipforge.improvement.head import HeadFit, HeldOut, fit_head, last_linear
from lipforge.improvement.run import ImproveResult, improve
