"""Measurements of single parts: Artifacts in and out, and the Worker's scheduler."""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from mwnode.bench.report import Result, best_of, latency, rate, seconds_of
from mwnode.bench.traffic import open_node
from mwnode.node import Node
from mwnode.system import OsEntropy
from mwnode.worker.scheduler import Entry, Scheduler, Settings

PIECE = 1024 * 1024
ROUNDS = 3


def artifacts(directory: Path, mebibytes: int) -> list[Result]:
    """Megabytes a second into and out of the store, beside SHA-256 and a plain file.

    Both write to fresh blocks in every round: to write over what is in memory already costs a fraction of it.
    """
    took: dict[str, list[float]] = {"write": [], "put": [], "read": [], "get": []}
    with open_node(directory) as node:
        for number in range(ROUNDS):
            pieces = [OsEntropy().random(PIECE) for _ in range(mebibytes)]
            plain = directory / f"plain-{number}.bin"
            took["write"].append(seconds_of(partial(_write_plain, plain, pieces)))
            begun = time.perf_counter()
            writer = node.artifacts.begin_put()
            for piece in pieces:
                writer.write(piece)
            content_hash = writer.finish(None).content_hash
            took["put"].append(time.perf_counter() - begun)
            took["read"].append(best_of(2, partial(_read_plain, plain)))
            took["get"].append(best_of(2, partial(_get, node, content_hash)))
    write, put, read, get = (median(times) for times in took.values())
    return [
        rate("Artifact put, MiB", mebibytes / put, mebibytes / write),
        rate("Artifact get, MiB", mebibytes / get, mebibytes / read),
    ]


def _write_plain(path: Path, pieces: Sequence[bytes]) -> None:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _read_plain(path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)


def _get(node: Node, content_hash: str) -> None:
    for _ in node.artifacts.read(content_hash):
        pass


def _spread(number: int) -> float:
    """A value from 0 to 1 that looks scattered and is the same in every run."""
    return number * 7_919 % 10_007 / 10_007


def _decide(size: int, groups: int, rounds: int) -> float:
    """Seconds of processor that so many decisions take while at least ``size`` items are queued."""
    chosen = Scheduler(Settings(slots=4))
    for number in range(size + rounds):
        chosen.add(
            Entry(
                work_item_id=f"item-{number}",
                group_id=f"group-{number % groups}",
                ready_at=float(number % 977),
                seconds=1.0 + _spread(number),
            )
        )
    begun = time.process_time()
    for number in range(rounds):
        pick = chosen.pick(1_000.0 + number)
        if pick is None:
            raise RuntimeError("the bench's scheduler found nothing to run")
        chosen.release(pick.work_item_id, 1.0)
        chosen.remove(pick.work_item_id)
    return time.process_time() - begun


def scheduler(queued: int, groups: int = 100, rounds: int = 2_000) -> list[Result]:
    """One decision with that many items queued, beside a push and a pop of heapq on as many."""
    results: list[Result] = []
    for size in (100, queued):
        heap = [_spread(number) for number in range(size)]
        heapq.heapify(heap)

        def push_and_pop(heap: list[float] = heap) -> None:
            for number in range(rounds):
                heapq.heappush(heap, _spread(number))
                heapq.heappop(heap)

        floor = best_of(3, push_and_pop, time.process_time) / rounds
        name = f"scheduler decision, {size} queued in {groups} Groups"
        # Processor time, and the best of several: what else this machine does is no cost of a decision.
        results.append(latency(name, min(_decide(size, groups, rounds) for _ in range(3)) / rounds, floor))
    return results
