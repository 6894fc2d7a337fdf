"""The paper's tables and figures, measured again: published beside measured."""

from lipforge.reproduction.figures import reproduce_figure
from lipforge.reproduction.plan import published_rows
from lipforge.reproduction.run import estimate_table, reproduce
from lipforge.reproduction.sources import Source
