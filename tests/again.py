"""`python -m tests.again`: run what failed once more, where a busy machine may have been the reason; says so loudly.

Only tests of real processes and sockets, and only a few: whatever else fails, and whatever fails again, has failed. A
test that passes at its second attempt is a fault all the same, and is listed for whoever reads this.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FAILED = Path(".pytest_cache/v/cache/lastfailed")
MOST = 3
"""More than this is no accident."""
REAL = frozenset(
    {"cli", "client", "crash", "demo", "faults", "gateway", "hostile", "interop", "node", "testing", "worker"}
)
"""The directories of tests that start processes or open sockets; all other tests see nothing of the machine."""


def refusal(failed: Sequence[str]) -> str | None:
    """Why these tests are not run again; ``None`` when they are."""
    if not failed:
        return "no test that failed is known"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed: so many are no accident"
    pure = [name for name in failed if name.split("/")[1] not in REAL]
    return f"{pure[0]} uses neither processes nor sockets" if pure else None


def main() -> int:
    """Exit 0 only when all that had failed passes now."""
    failed = sorted(json.loads(FAILED.read_text(encoding="utf-8"))) if FAILED.exists() else []
    why_not = refusal(failed)
    if why_not is not None:
        print(f"nothing is run again: {why_not}")
        return 1
    status = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", *failed], check=False).returncode
    for name in failed:
        what = (
            "PASSED ONLY AT ITS SECOND ATTEMPT, which is a fault of the test or of mwnode" if status == 0 else "FAILED"
        )
        print(f"!!! {what}: {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
