"""What a run was computed with: recorded beside the results, not part of what identifies them."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Versions, machine, threads and accelerators, ready for JSON."""
    return {
        "lipforge": lipforge_version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def lipforge_version() -> str:
    """The installed version of lipforge, or "unknown" in a source tree that was never installed."""
    try:
        return version("lipforge")
    except PackageNotFoundError:
        return "unknown"
