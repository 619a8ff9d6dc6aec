"""Measurements in one process: the durable Command, its retry, and verification alone."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import msgspec

from mwnode.bench import floors
from mwnode.bench.report import Result, latency, percentile, rate, seconds_of
from mwnode.bench.traffic import Speaker, open_node, signing_bytes
from mwnode.gateway.ports import Origin
from mwnode.genesis import binding_of
from mwnode.home import make_key
from mwnode.node import Node
from mwnode.protocol.documents import Actor, DocumentKind
from mwnode.store.commit import Accepted, Outcome
from mwnode.system import OsEntropy
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Verified, verify_batch

WINDOW = 256
BATCH = 64
VERIFY_ROUNDS = 5


def pipeline(node: Node, commands: Sequence[bytes], window: int = WINDOW) -> float:
    """Send Commands with so many in flight; seconds until all are durable. RuntimeError when one is refused.

    The window is filled again once a quarter of it was answered: to be woken up for each answer would cost the node's
    threads more than what is measured.
    """
    outcomes: list[Outcome | Failure] = []
    enough = threading.Event()
    wanted = 0
    origin = Origin(transport="http")

    def reply(outcome: Outcome | Failure) -> None:
        outcomes.append(outcome)
        if len(outcomes) >= wanted:
            enough.set()

    begun = time.perf_counter()
    sent = 0
    while len(outcomes) < len(commands):
        for command in commands[sent : len(outcomes) + window]:
            node.submit(command, origin, reply)
            sent += 1
        enough.clear()
        wanted = min(sent - window + max(1, window // 4), len(commands)) if sent < len(commands) else len(commands)
        if len(outcomes) < wanted:
            enough.wait()
    elapsed = time.perf_counter() - begun
    answers = Counter("accepted" if isinstance(each, Accepted) else str(each) for each in outcomes)
    if answers["accepted"] != len(commands):
        raise RuntimeError(f"the bench's Commands were refused: {answers.most_common(2)}")
    return elapsed


def append(directory: Path, count: int) -> list[Result]:
    """Durable signed Commands in process: pipelined, alone, and sent a second time."""
    with open_node(directory) as node:
        speaker = Speaker(node)
        groups = [speaker.new_group() for _ in range(4)]
        commands = speaker.messages(groups, count)
        message = signing_bytes(commands[0])
        verify, sign = floors.verify_seconds(message), floors.sign_seconds(message)
        least = floors.verify_seconds(message, clock=time.thread_time) + floors.sign_seconds(
            message, clock=time.thread_time
        )
        fsync = floors.fsync_seconds(directory)
        pipeline(node, speaker.messages(groups, min(count, 500)))
        processor = time.process_time()
        elapsed = pipeline(node, commands)
        processor = time.process_time() - processor
        retried = pipeline(node, commands)
        alone: list[float] = []
        for command in speaker.messages(groups, 200):
            begun = time.perf_counter()
            node.send(command)
            alone.append(time.perf_counter() - begun)
    single = verify + sign + fsync
    return [
        rate("durable Commands, embedded, pipelined", count / elapsed, 1 / (verify + sign)),
        latency("processor time of a durable Command, all threads", processor / count, least),
        rate("retried Commands answered, embedded", count / retried, 1 / verify),
        latency("lone Command, embedded, p50", percentile(alone, 0.5), single),
        latency("lone Command, embedded, p99", percentile(alone, 0.99), single),
    ]


def growth(directory: Path, small: int, large: int, sample: int = 2_000) -> list[Result]:
    """What a Command costs in a long Group against a short one, in processor time: what grows with the log is work."""
    with open_node(directory, durable=False) as node:
        speaker = Speaker(node)
        group = [speaker.new_group()]
        costs: list[float] = []
        reached = 1
        for target in (small, large):
            while reached < target:
                step = min(10_000, target - reached)
                pipeline(node, speaker.messages(group, step))
                reached += step
            samples = [speaker.messages(group, sample) for _ in range(5)]
            costs.append(min(seconds_of(partial(pipeline, node, each), time.process_time) for each in samples) / sample)
            reached += len(samples) * sample
    return [latency(f"Command at {large} Events in one Group (floor: at {small})", costs[1], costs[0])]


def with_keys(registry: Registry, total: int) -> Registry:
    """The Registry with further keys, as many as make the total."""
    evidence = registry.export()
    entropy = OsEntropy()
    for number in range(len(evidence["bindings"]), total):
        principal = Actor(type="agent", id=f"urn:mwnode:agent:bench-{number}")
        key = make_key("bench", principal, registry.organization_id, entropy)
        binding = msgspec.to_builtins(binding_of(key, "2026-01-01T00:00:00Z"))
        evidence["bindings"].append({**binding, "validityHistory": []})
    return Registry.from_evidence(evidence, registry.revision)


def verify(directory: Path, count: int) -> list[Result]:
    """The six stages in batches, at 10 and at 10,000 registered keys."""
    results: list[Result] = []
    with open_node(directory, durable=False) as node:
        speaker = Speaker(node)
        commands = speaker.messages([speaker.new_group()], count)
        kind: DocumentKind = "command"
        registries = {"10 keys": node.registry, "10000 keys": with_keys(node.registry, 10_000)}
    signed, public = floors.signed_texts(signing_bytes(commands[0]), BATCH)
    for label, registry in registries.items():

        def work(batch: Sequence[bytes], registry: Registry = registry) -> None:
            for verdict in verify_batch([(raw, kind) for raw in batch], registry):
                if not isinstance(verdict, Verified):
                    raise RuntimeError(f"the bench's Command did not verify: {verdict}")

        # In turns, batch by batch and in this thread's processor time: both see the machine in the same mood.
        took: list[tuple[float, float]] = []
        for _ in range(VERIFY_ROUNDS):
            for start in range(0, count - BATCH + 1, BATCH):
                bare = seconds_of(partial(floors.verify_all, signed, public), time.thread_time)
                took.append((bare, seconds_of(partial(work, commands[start : start + BATCH]), time.thread_time)))
        floor, ours = (median(column) for column in zip(*took, strict=True))
        results.append(rate(f"six-stage verification, {label}", BATCH / ours, BATCH / floor))
    return results
