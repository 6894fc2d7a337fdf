"""From a recipe to a deployed model: files for other runtimes, checked when they are written, judged when loaded."""

from lipforge.deployment.loading import Exported as Exported
from lipforge.deployment.loading import load_exported as load_exported
from lipforge.deployment.run import export as export
