"""`python -m tests.testing`: what a test pays for its node, beside a bare LMDB file, in processor time of this run.

Each is made, written once and closed again, in turns; the least of each counts. Without fsync, as in tests.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import lmdb

from mwnode.node import Node
from mwnode.testing import Harness, ManualClock, SeededEntropy

ROUNDS = 40
MAP_BYTES = 256 << 20


def bare(path: Path) -> None:
    """Open a file, commit one entry, close it."""
    environment = lmdb.open(str(path), subdir=False, map_size=MAP_BYTES, sync=False, metasync=False)
    with environment.begin(write=True) as transaction:
        transaction.put(b"a", b"b")
    environment.close()


def opened(home: Path) -> None:
    """Open the node of a HOME and close it."""
    Node.open(home, clock=ManualClock(), entropy=SeededEntropy(), durable=False).close()


def main() -> int:
    folder, numbers = Path(tempfile.mkdtemp(prefix="mwnode-cost-")), count()
    kept, home = folder / "kept.mdb", folder / "kept"
    bare(kept)
    opened(home)

    def fresh() -> Path:
        return folder / str(next(numbers))

    cases: dict[str, Callable[[], None]] = {
        "bare LMDB, new file": lambda: bare(fresh()),
        "bare LMDB, there already": lambda: bare(kept),
        "node, HOME there already": lambda: opened(home),
        "fixture: HOME copied, node": lambda: Harness(fresh()).close(),
        "the same without threads": lambda: Harness(fresh(), threads=False).close(),
        "node, HOME founded": lambda: opened(fresh()),
    }
    least = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, case in cases.items():
            began = time.process_time()
            case()
            least[name] = min(least[name], time.process_time() - began)
    floor = least["bare LMDB, new file"]
    for name, seconds in least.items():
        print(f"{name:28}{seconds * 1000:8.2f} ms{seconds / floor:8.1f} x")
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
