"""One attack as a process, until its stdin ends: `python -m tests.hostile.attacker NAME HOME PORT GROUP NICENESS`."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
from pathlib import Path

from tests.hostile.attacks import ATTACKS, Attack
from tests.hostile.scene import Scene
from tests.hostile.wire import Place, read_ca

LOOK_SECONDS = 0.02


async def run(name: str, home: Path, port: int, group_id: str) -> None:
    begun = asyncio.Event()
    attack = Attack(Scene(home, group_id), Place.of(port, read_ca(home)), ready=begun.set)

    async def report() -> None:
        await begun.wait()
        while not attack.count:
            # What an earlier attack owes, this one may have to wait for.
            await asyncio.sleep(LOOK_SECONDS)
        print("ready", flush=True)

    reporting = asyncio.ensure_future(report())
    assault = asyncio.ensure_future(ATTACKS[name](attack))
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((assault, ended), return_when=asyncio.FIRST_COMPLETED)
    if assault.done():
        assault.result()
    for task in (assault, reporting):
        task.cancel()
    await asyncio.gather(assault, reporting, return_exceptions=True)
    print(json.dumps(attack.count), flush=True)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    name, home, port, group_id, niceness = sys.argv[1:]
    os.nice(int(niceness))
    asyncio.run(run(name, Path(home), int(port), group_id))


if __name__ == "__main__":
    main()
