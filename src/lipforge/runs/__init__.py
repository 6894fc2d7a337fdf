"""Run directories: work cut into shards, each written whole, so that a kill costs one shard and nothing else."""

from lipforge.runs.rundir import RunDir, open_task, record
from lipforge.runs.tasks import Compute, Task
from lipforge.runs.workers import Status, work

__all__ = ["Compute", "RunDir", "Status", "Task", "open_task", "record", "work"]
