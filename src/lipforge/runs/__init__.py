"""Run directories and the driver: work cut into shards, each written whole, so that a kill costs one shard at most."""

from lipforge.runs.experiment import SHARD_SIZE, Experiment, Shard, Watch
from lipforge.runs.identity import change_of, environment, slug
from lipforge.runs.rundir import RunDir, open_task
from lipforge.runs.tasks import Compute, Task, digest_of
from lipforge.runs.workers import Status, work
