"""One attack in a process of its own: `python -m tests.hostile.attacker NAME HOME PORT GROUP`, until stdin closes."""

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

NICENESS = 19
"""What an attacker does on a machine of its own must not take the processor from those who are measured."""


async def run(name: str, home: Path, port: int, group_id: str) -> None:
    said = False

    def ready() -> None:
        nonlocal said
        if not said:
            said = True
            print("ready", flush=True)

    attack = Attack(Scene(home, group_id), Place.of(port, read_ca(home)), ready=ready)
    assault = asyncio.ensure_future(ATTACKS[name](attack))
    ended = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((assault, ended), return_when=asyncio.FIRST_COMPLETED)
    if assault.done():
        assault.result()
    assault.cancel()
    await asyncio.gather(assault, return_exceptions=True)
    print(json.dumps(attack.count), flush=True)


def main() -> None:
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    gc.freeze()
    name, home, port, group_id = sys.argv[1:]
    asyncio.run(run(name, Path(home), int(port), group_id))


if __name__ == "__main__":
    main()
