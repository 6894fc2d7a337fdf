"""foolbox, imported past a deprecated SciPy name that it still uses."""

import importlib
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    foolbox: Any = importlib.import_module("foolbox")
