"""Read thousands of damaged files of every kind: python tools/fuzz.py --inputs 10000 --seed 0

An input must be read, or refused by a LipforgeError that names the file: no other exception, within 5 s and 4 times the
file's size in memory (plus 128 MB), without writing elsewhere, starting a program, connecting or unpickling.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tiny import table

from tests.fuzz.engine import try_kind
from tests.fuzz.formats import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    given = parser.parse_args()
    names, rows, complaints = given.kinds.split(","), [], []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            seen = try_kind(name, -(-given.inputs // len(names)), Path(folder).resolve(), given.seed)
        complaints += seen.complaints
        most = f"{seen.bytes / (1 << 20):.0f} MB"
        rows.append([name, seen.inputs, seen.read, seen.refused, len(seen.complaints), f"{seen.seconds:.2f} s", most])
        print(*rows[-1], file=sys.stderr)
    print(table(["kind", "inputs", "read", "refused by name", "anything else", "slowest", "most memory"], rows))
    print(f"{sum(row[1] for row in rows)} inputs, {len(complaints)} complaints")
    print("\n".join(complaints[:200]))
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
