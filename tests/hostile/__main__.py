"""`python -m tests.hostile [--attack NAME] [--rounds 5] [--json]`: what honest Agents notice of each attack."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.hostile.attacks import ATTACKS
from tests.hostile.measure import judge
from tests.hostile.scene import CROWD, crowd_size, make_scene, running

FAULT = "Traceback"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--attack", action="append", choices=sorted(ATTACKS), help="only this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs, with and without the attack")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each run")
    parser.add_argument("--json", action="store_true", help="one JSON object for each attack")
    options = parser.parse_args()
    # Ended from outside, it still takes its node and attacker down with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    names = options.attack or list(ATTACKS)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mwnode-hostile-") as name:
        directory = Path(name)
        scene = make_scene(directory, crowd_size(CROWD) if "idle" in names else 0)
        for each in names:
            log = directory / f"{each}.log"
            with running(scene, log) as node:
                verdict = asyncio.run(judge(each, scene, node, rounds=options.rounds, seconds=options.seconds))
            words = log.read_text()
            if options.json:
                print(json.dumps({**verdict.document(), "logLines": words.count("\n")}), flush=True)
            else:
                print(f"{verdict.line()}  log {words.count(chr(10))} lines", flush=True)
            if FAULT in words:
                print(words[-4000:], file=sys.stderr)
            failed += not verdict.holds or FAULT in words
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
