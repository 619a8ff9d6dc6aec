"""What a benchmark tells, and how it measures."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence

from msgspec import Struct


class Result(Struct, frozen=True):
    """One figure. ``ratio`` is value to floor where more is better, floor to value where less is: 1.0 is the floor."""

    name: str
    value: float
    unit: str
    floor: float | None = None
    ratio: float | None = None


class Machine(Struct, frozen=True, rename="camel"):
    """Where the figures were taken."""

    python: str
    system: str
    machine: str
    cores: int


def this_machine() -> Machine:
    """The machine that runs this."""
    return Machine(platform.python_version(), platform.system(), platform.machine(), os.cpu_count() or 1)


def rate(name: str, per_second: float, floor_per_second: float | None) -> Result:
    """A rate in units a second; more is better."""
    ratio = None if not floor_per_second else round(per_second / floor_per_second, 3)
    floor = None if floor_per_second is None else round(floor_per_second, 1)
    return Result(name, round(per_second, 1), "1/s", floor, ratio)


def latency(name: str, seconds: float, floor_seconds: float | None) -> Result:
    """A time in microseconds; less is better. The ratio says how many floors it takes."""
    floor = None if floor_seconds is None else round(floor_seconds * 1e6, 1)
    ratio = None if not floor_seconds else round(seconds / floor_seconds, 3)
    return Result(name, round(seconds * 1e6, 1), "us", floor, ratio)


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes by a clock, in seconds."""
    begun = clock()
    work()
    return clock() - begun


def best_of(rounds: int, work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """The shortest of several calls, in seconds: the one that was disturbed least."""
    return min(seconds_of(work, clock) for _ in range(rounds))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
