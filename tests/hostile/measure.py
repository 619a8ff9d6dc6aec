"""An attack against the same run without it, interleaved, so that the machine's own moods cancel out."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.hostile.honest import Listeners, Sample, Speakers, arrive
from tests.hostile.scene import Running, Scene
from tests.patience import PATIENCE_SECONDS

P50_RATIO = 1.1
P99_RATIO = 1.5
"""What honest Agents may notice of an attack, as ratios to the same run without it."""
LOOK_SECONDS = 0.2
SETTLE_SECONDS = 0.5
NICENESS = 19
"""What an attacker does on a machine of its own must not take the processor from those who are measured."""
CHECKOUT = Path(__file__).resolve().parent.parent.parent


@asynccontextmanager
async def attacking(name: str, scene: Scene, node: Running, niceness: int = NICENESS) -> AsyncIterator[Counter[str]]:
    """The attack at work, in a process of its own; what it counted is there afterwards."""
    arguments = (name, str(scene.home), str(node.place.port), scene.group_id, str(niceness))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.hostile.attacker",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=CHECKOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    counted: Counter[str] = Counter()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await process.stdout.readline()
        if line.strip() != b"ready":
            raise RuntimeError(f"the attacker {name} could not begin: {line!r}")
        yield counted
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            last = await process.stdout.read()
        counted.update(json.loads(last.splitlines()[-1]))
    finally:
        if process.returncode is None:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


def _p50(sample: Sample) -> float:
    return sample.p50


def _p99(sample: Sample) -> float:
    return sample.p99


class Verdict:
    """The figures of one attack."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.quiet: list[Sample] = []
        self.attacked: list[Sample] = []
        self.counted: Counter[str] = Counter()
        self.arrivals: list[float] = []
        self.memory_before = 0
        self.memory_peak = 0
        self.memory_after = 0
        self.cpu_quiet = 0.0
        self.cpu_attacked = 0.0
        self.files_peak = 0
        self.alive = False

    def ratio(self, of: Callable[[Sample], float]) -> float:
        return median(map(of, self.attacked)) / median(map(of, self.quiet))

    @property
    def p50_ratio(self) -> float:
        return self.ratio(_p50)

    @property
    def p99_ratio(self) -> float:
        return self.ratio(_p99)

    @property
    def holds(self) -> bool:
        return self.alive and self.p50_ratio <= P50_RATIO and self.p99_ratio <= P99_RATIO

    def document(self) -> dict[str, Any]:
        """The figures in JSON: milliseconds and MiB."""

        def milliseconds(samples: list[Sample], of: Callable[[Sample], float]) -> float:
            return round(1000 * median(map(of, samples)), 3)

        return {
            "attack": self.name,
            "holds": self.holds,
            "alive": self.alive,
            "p50Ratio": round(self.p50_ratio, 3),
            "p99Ratio": round(self.p99_ratio, 3),
            # The best of each: what a machine that others use as well shows most truly.
            "bestRatios": [round(min(map(of, self.attacked)) / min(map(of, self.quiet)), 3) for of in (_p50, _p99)],
            "p50": [milliseconds(each, _p50) for each in (self.quiet, self.attacked)],
            "p99": [milliseconds(each, _p99) for each in (self.quiet, self.attacked)],
            "samples": [sum(len(sample.took) for sample in each) for each in (self.quiet, self.attacked)],
            "arrivalMax": round(1000 * max(self.arrivals), 1) if self.arrivals else None,
            "rssAnonMiB": [
                round(each / 2**20, 1) for each in (self.memory_before, self.memory_peak, self.memory_after)
            ],
            "cpuSeconds": [round(self.cpu_quiet, 2), round(self.cpu_attacked, 2)],
            "filesPeak": self.files_peak,
            "did": dict(self.counted),
        }

    def line(self) -> str:
        """The figures for people."""
        figures = self.document()
        before, peak, after = figures["rssAnonMiB"]
        return (
            f"{'ok  ' if self.holds else 'FAIL'} {self.name:20} "
            f"p50 x{figures['p50Ratio']:<6} p99 x{figures['p99Ratio']:<6} "
            f"({figures['p50'][0]}/{figures['p99'][0]} ms quiet)  RssAnon {before} -> {peak} -> {after} MiB  "
            f"cpu {figures['cpuSeconds'][0]}/{figures['cpuSeconds'][1]} s  newcomer {figures['arrivalMax']} ms  "
            f"{figures['did']}"
        )


async def judge(name: str, scene: Scene, node: Running, *, rounds: int, seconds: float) -> Verdict:
    """Measure the honest with and without an attack, in turn."""
    verdict = Verdict(name)
    speakers = await Speakers.connect(node.place, scene.honest, scene.group_id)
    listeners = None
    run: Callable[[float], Awaitable[Sample]] = speakers.run
    if name == "stuck":
        listeners = await Listeners.connect(node.place, scene.listeners, scene.group_id, speakers)
        run = listeners.run
    try:
        await run(min(1.0, seconds))
        verdict.memory_before = node.private_bytes
        for number in range(rounds):
            # Whoever goes first has the colder caches: take turns.
            for attacked in (False, True) if number % 2 == 0 else (True, False):
                if attacked:
                    async with attacking(name, scene, node) as counted:
                        await asyncio.sleep(SETTLE_SECONDS)
                        begun = node.cpu_seconds
                        watch = asyncio.create_task(_watch(node, verdict))
                        verdict.attacked.append(await run(seconds))
                        watch.cancel()
                        verdict.cpu_attacked += node.cpu_seconds - begun
                        verdict.arrivals.append(await arrive(node.place, scene.key("newcomer")))
                    verdict.counted += counted
                    await asyncio.sleep(SETTLE_SECONDS)
                else:
                    begun = node.cpu_seconds
                    verdict.quiet.append(await run(seconds))
                    verdict.cpu_quiet += node.cpu_seconds - begun
        verdict.alive = node.alive
        verdict.memory_after = node.private_bytes
    finally:
        if listeners is not None:
            await listeners.close()
        speakers.close()
    return verdict


async def _watch(node: Running, verdict: Verdict) -> None:
    while True:
        verdict.memory_peak = max(verdict.memory_peak, node.private_bytes)
        verdict.files_peak = max(verdict.files_peak, node.files)
        await asyncio.sleep(LOOK_SECONDS)
