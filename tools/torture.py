"""Kill real commands again and again, and run them on broken machines: python tools/torture.py --kills 1000 --seed 0

Each command is killed up to five times in one run directory and then left alone; its results, shards and weights must
be those of a run that nobody disturbed, times apart. Kills come at random moments and at chosen ones: just before a
file is renamed into place, and while a lock is held. Then faults: a full disk, a read-only directory, a clock that
goes backwards, too few file handles, too little memory, and the same command twice at once. --torchrun N kills single
ranks and torchrun itself. Mounts need root on Linux; without it a file size limit stands in for a full disk.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny import COMMANDS, Ended, facts, finish, prepare, run, start, table

KILLS_PER_RUN = 5
SIGKILL = -signal.SIGKILL


@dataclass
class Tally:
    """One row of the table; `lost` counts run directories that ended in other results."""

    name: str
    disturbed: int = 0
    stopped: int = 0
    directories: int = 0
    lost: int = 0
    tracebacks: int = 0
    messages: set[str] = field(default_factory=set)

    def see(self, ended: Ended) -> None:
        self.tracebacks += ended.is_bug
        if ended.is_bug:
            print(f"{self.name}: exit {ended.code}\n{ended.said}", file=sys.stderr)

    def check(self, folder: Path, expected: dict[str, Any]) -> None:
        """Compare a finished run directory with the undisturbed one, and remove it."""
        found = facts(folder)
        different = [name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name)]
        self.directories += 1
        self.lost += bool(different)
        if different:
            print(f"{self.name}: {folder} differs in {different}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def row(self) -> list[object]:
        return [self.name, self.disturbed, self.stopped, self.directories, self.lost, self.tracebacks]


def die_at(event: str, number: int) -> None:
    """Kill this process at the `number`th time that Python announces the event: before a rename, or at the first thing
    that it does once it has the lock."""
    seen = 0

    def hook(name: str, _: object) -> None:
        nonlocal seen
        due = seen == number if event == "fcntl.flock" else seen + 1 == number
        seen += name == event
        if due and (name == event) == (event != "fcntl.flock"):
            seen += 1  # a kill is announced too
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def kill_once(command: str, folder: Path, seconds: float, chance: random.Random) -> Ended:
    """A command that is killed somewhere: at a random time, before a rename, or in a lock."""
    event = chance.choice(["", "", "os.rename", "fcntl.flock"])
    if not event:
        return run(command, folder, kill_after=chance.uniform(0.0, seconds))
    number = chance.randint(1, 4)
    return run(command, folder, lambda: die_at(event, number))


def campaign(
    name: str, kills: int, world: Path, expected: dict[str, Any], seconds: float, chance: random.Random
) -> Tally:
    """Kill one command `kills` times, at most five times per run directory."""
    tally = Tally(f"{name}, killed")
    while tally.stopped < kills:
        folder = world / f"{name}-killed-{tally.directories}"
        for _ in range(min(KILLS_PER_RUN, kills - tally.stopped)):
            ended = kill_once(COMMANDS[name], folder, seconds, chance)
            tally.disturbed += 1
            tally.stopped += ended.code == SIGKILL
            tally.see(ended)
        tally.see(run(COMMANDS[name], folder))
        tally.check(folder, expected)
    return tally


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 8 MB at `folder`, if this user may mount one."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True)


def limited(kind: int, limit: int) -> Callable[[], None]:
    """Sets a limit of this process; a file that grows too large is an error instead of a signal."""

    def set_limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(kind, (limit, limit))

    return set_limit


def full_disk(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command with room for a few pages, or with files of limited size where nothing can be mounted."""
    if not os.path.ismount(folder):
        return run(command, folder, limited(resource.RLIMIT_FSIZE, chance.randint(0, 4) * 512))
    usage = shutil.disk_usage(folder)
    (folder / "filler").write_bytes(bytes(usage.free - 4096 * chance.randint(1, 16)))
    ended = run(command, folder)
    (folder / "filler").unlink()
    return ended


def read_only(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command in a directory that nobody may write to."""
    how = "mount" if os.path.ismount(folder) else "chmod"
    calls = {"mount": ["mount", "-o", "remount,{}"], "chmod": ["chmod", "{}"]}
    locked, free = ("ro", "rw") if how == "mount" else ("555", "755")
    subprocess.run([part.format(locked) for part in calls[how]] + [str(folder)], check=True)
    ended = run(command, folder)
    subprocess.run([part.format(free) for part in calls[how]] + [str(folder)], check=True)
    return ended


def backwards(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command, killed under way, while the wall clock loses a minute at every look and files have later dates."""

    def turn() -> None:
        now, looks = time.time(), iter(range(1 << 40))
        time.time = lambda: now - 60.0 * next(looks)

    ended = run(command, folder, turn, kill_after=chance.uniform(0.2, 1.0))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() + 1e6,) * 2)
    return run(command, folder, turn) if ended.code == SIGKILL else ended


def few_handles(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command with only a few more file handles than it starts with."""
    used = len(os.listdir("/proc/self/fd"))
    return run(command, folder, limited(resource.RLIMIT_NOFILE, used + chance.randint(-2, 1)))


def little_memory(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command with little more memory than it starts with; C++ may abort it instead of raising."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return run(command, folder, limited(resource.RLIMIT_AS, pages * 4096 + chance.randint(0, 96) * (1 << 16)))


def twice_at_once(command: str, folder: Path, chance: random.Random) -> Ended:
    """The command started twice at the same time; gives how the first ended that did not end well."""
    both = [start(command, folder) for _ in range(2)]
    ended = [finish(child, folder) for child in both]
    return next((one for one in ended if one.is_bug or one.code in (2, SIGKILL)), ended[0])


FAULTS = {
    "full disk": full_disk,
    "read-only directory": read_only,
    "clock going backwards": backwards,
    "few file handles": few_handles,
    "little memory": little_memory,
    "twice at once": twice_at_once,
}
MAY_FAIL = ("full disk", "read-only directory", "few file handles", "little memory")


def fault(name: str, commands: list[str], world: Path, expected: dict[str, Any], chance: random.Random) -> Tally:
    """Each command under one fault, then without it in the same directory."""
    tally = Tally(name)
    for command in commands:
        with small_disk(folder := world / f"{command}-{name.replace(' ', '-')}"):
            ended = FAULTS[name](COMMANDS[command], folder, chance)
            tally.see(ended)
            tally.disturbed += 1
            tally.stopped += ended.code in (2, SIGKILL, -signal.SIGABRT)
            if ended.code == 2:
                tally.messages.add(ended.said.strip().replace(str(world), "..."))
            if ended.code in (2, SIGKILL) and name not in MAY_FAIL:
                print(f"{name}, {command}: exit {ended.code}\n{ended.said}", file=sys.stderr)
                tally.tracebacks += 1
            tally.see(run(COMMANDS[command], folder))
            tally.check(folder, expected[command])
    return tally


def ranks(count: int, world: Path, expected: dict[str, Any], chance: random.Random) -> list[Tally]:
    """Evaluations under torchrun with two ranks: one rank killed, or torchrun itself, which hands out the shards."""
    tallies = [Tally("torchrun, a rank killed"), Tally("torchrun itself killed")]
    for number in range(count):
        tally, folder = tallies[number % 2], world / f"ranks-{number}"
        folder.mkdir()
        _kill_under_torchrun(folder, whole=number % 2 == 1, seconds=chance.uniform(4.0, 9.0))
        tally.disturbed, tally.stopped = tally.disturbed + 1, tally.stopped + 1
        tally.see(run(COMMANDS["evaluate"], folder))
        tally.check(folder, expected)
    return tallies


def _kill_under_torchrun(folder: Path, *, whole: bool, seconds: float) -> None:
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    command = [*program, "lipforge", *COMMANDS["evaluate"].split(), "--quiet"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, start_new_session=True, **quiet) as process:
        time.sleep(seconds)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        started = children.read_text().split() if children.exists() else []
        os.kill(process.pid if whole or not started else int(started[-1]), signal.SIGKILL)
        try:
            process.wait(60)
            time.sleep(1.0 if whole else 0.0)  # ranks that lost torchrun may still be writing
        finally:
            for left in started:  # ours: torchrun started them
                with suppress(ProcessLookupError):
                    os.kill(int(left), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torchrun", type=int, default=0, metavar="N", help="also kill N evaluations under torchrun")
    parser.add_argument("--commands", default=",".join(COMMANDS), help="which ones to kill")
    parser.add_argument("--faults", default="", help="which commands get every fault; by default those that are killed")
    given = parser.parse_args()
    names, chance = given.commands.split(","), random.Random(given.seed)
    faulty = given.faults.split(",") if given.faults else names
    with tempfile.TemporaryDirectory() as folder:
        world = Path(folder).resolve()
        prepare(world)
        expected, seconds = {}, {}
        for name in dict.fromkeys([*names, *faulty, "evaluate"]):
            ended = run(COMMANDS[name], world / name)
            expected[name], seconds[name] = facts(world / name), ended.seconds
            if ended.is_bug or ended.code == 2:
                raise SystemExit(f"{name} does not work undisturbed: {ended.said}")
        shares = [
            given.kills * (place + 1) // len(names) - given.kills * place // len(names) for place in range(len(names))
        ]
        tallies = []
        for name, share in zip(names, shares, strict=True):
            tallies.append(campaign(name, share, world, expected[name], seconds[name], chance))
            print(*tallies[-1].row, f"{seconds[name]:.1f} s", file=sys.stderr)
        tallies += [fault(name, faulty, world, expected, chance) for name in FAULTS]
        tallies += ranks(given.torchrun, world, expected["evaluate"], chance) if given.torchrun else []
    print(
        table(
            ["what", "tried", "stopped the command", "run directories", "lost", "tracebacks"],
            [one.row for one in tallies],
        )
    )
    for message in sorted({message for one in tallies for message in one.messages}):
        print(message)
    return int(any(one.lost or one.tracebacks for one in tallies))


if __name__ == "__main__":
    sys.exit(main())
