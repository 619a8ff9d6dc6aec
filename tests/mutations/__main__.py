"""`python -m tests.mutations --module table --seed 1 --count 50`: try mutants of the core against its own tests.

Run by hand: it is no part of the suite. One process works at a time.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pickle
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.mutations import trial
from tests.mutations.faults import CHECKOUT, CORE, Mutant, mutants
from tests.mutations.trial import Map, Order, Verdict

HEAVY = ("aiohttp.web", "cryptography.x509", "jsonschema", "lmdb", "msgspec", "nacl.bindings", "prometheus_client")
"""Loaded once, before the children that load the core and its tests anew."""
WANTED = 0.85
"""The share of mutants that the tests should kill."""


def choose(names: Sequence[str], seed: int, count: int | None, sample: int = 0) -> list[Mutant]:
    """The mutants of some modules, or ``count`` of them by chance; and ``sample`` by chance of all other modules."""
    found = [mutant for name in names for mutant in _all(name)]
    if count is not None:
        found = _some(found, seed, count)
    others = [mutant for name in modules() if name not in names for mutant in _all(name)] if sample else []
    return [*found, *_some(others, seed, sample)]


def _all(name: str) -> list[Mutant]:
    return list(mutants(name, (CHECKOUT / CORE / f"{name}.py").read_text("utf-8")))


def _some(found: list[Mutant], seed: int, count: int) -> list[Mutant]:
    random.Random(seed).shuffle(found)
    return sorted(found[:count], key=lambda mutant: (mutant.module, mutant.node, mutant.fault))


def modules() -> list[str]:
    """The modules of the core that can hold a fault."""
    return sorted(path.stem for path in (CHECKOUT / CORE).glob("*.py") if path.stem != "__init__")


class Record:
    """Verdicts, as they come, on the output and in a file."""

    def __init__(self, path: Path | None, total: int) -> None:
        self.path, self.total = path, total
        self.verdicts: list[Verdict] = []

    def tell(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        word = "killed  " if verdict.killed else "SURVIVED"
        line = f"{word} {verdict.mutant} <- {verdict.by} ({verdict.seconds:.1f} s)"
        if not verdict.killed:
            print(f"[{len(self.verdicts)}/{self.total}] {line}", flush=True)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def summary(self) -> str:
        """A line for each module, and one for all."""
        lines = [f"{'module':<16}{'mutants':>8}{'killed':>8}{'share':>8}"]
        for name in (*sorted({verdict.mutant.module for verdict in self.verdicts}), "all"):
            of = [verdict.killed for verdict in self.verdicts if name in (verdict.mutant.module, "all")]
            lines.append(f"{name:<16}{len(of):>8}{sum(of):>8}{sum(of) / max(1, len(of)):>8.1%}")
        return "\n".join(lines)

    @property
    def share(self) -> float:
        """How many of the mutants were killed."""
        return sum(verdict.killed for verdict in self.verdicts) / max(1, len(self.verdicts))


def run(chosen: Sequence[Mutant], patience: float, record: Record) -> list[str]:
    """Try the mutants; gives the tests that fail without any, in which case none is tried."""
    warm = [mutant for mutant in chosen if mutant.place is not None]
    cold = [mutant for mutant in chosen if mutant.place is None]
    with tempfile.TemporaryDirectory(prefix="mwnode-mutants-") as scratch:
        file = Path(scratch) / "results"
        child = os.fork()
        if child == 0:
            # What was loaded for the faults in functions must not be there when modules are loaded with theirs.
            status = 1
            try:
                trial.load(lambda tests: _work(tests, warm, patience, record, file))
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.waitpid(child, 0)
        known: Map
        known, verdicts, left, killers = pickle.loads(file.read_bytes())
    if known.failed:
        return known.failed
    record.verdicts[:] = verdicts
    order = Order(known)
    for place, tests in killers.items():
        order.killers[place].update(tests)
    for name in HEAVY:
        importlib.import_module(name)
    trial.try_cold([*left, *cold], order, patience, record.tell)
    return []


def _work(tests: dict[str, pytest.Item], warm: Sequence[Mutant], patience: float, record: Record, file: Path) -> None:
    known = trial.draw_map(tests)
    print(f"{len(known.seconds)} tests, {sum(known.seconds.values()):.0f} s with their lines noted", flush=True)
    order = Order(known)
    left = [] if known.failed else trial.try_warm(warm, tests, order, patience, record.tell)
    plain: Any = {place: dict(tests) for place, tests in order.killers.items()}
    known.runs = dict(known.runs)
    file.write_bytes(pickle.dumps((known, record.verdicts, left, plain)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants; print the survivors and the share of those killed. Exit 0 when it is at least 85 %."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=main.__doc__)
    parser.add_argument("--module", action="append", help="module of mwnode/authority (repeatable); all by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, help="how many mutants; all of them by default")
    parser.add_argument("--sample", type=int, default=0, help="also so many mutants of all other modules")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds of processor time for the tests of one mutant"
    )
    parser.add_argument("--output", type=Path, help="write every verdict to this file, too")
    parser.add_argument("--again", type=Path, help="only those mutants that survived according to this file")
    parser.add_argument("--list", action="store_true", help="only say how many there are")
    options = parser.parse_args(arguments)
    chosen = choose(options.module or modules(), options.seed, options.count, options.sample)
    if options.again is not None:
        survived = {_without_line(line) for line in options.again.read_text("utf-8").splitlines() if "SURVIVED" in line}
        chosen = [mutant for mutant in chosen if _without_line(f"SURVIVED {mutant} <-") in survived]
    if options.list:
        print(len(chosen))
        return 0
    record = Record(options.output, len(chosen))
    failing = run(chosen, options.patience, record)
    if failing:
        print(f"these tests fail without any mutant: {', '.join(failing)}", file=sys.stderr)
        return 2
    print(record.summary())
    return 0 if record.share >= WANTED else 1


def _without_line(text: str) -> str:
    """What was said of a mutant, less the number of its line, which moves when the module is worked on."""
    head, _, rest = text.partition("SURVIVED ")[2].partition(" <-")[0].partition(".py:")
    return f"{head} {rest.lstrip('0123456789')}"


if __name__ == "__main__":
    sys.exit(main())
