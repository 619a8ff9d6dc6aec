"""How a mutant is tried: in a child of a process that has the tests loaded and knows which of them runs which line.

A fault in the body of a function is put in by exchanging the function's code, wherever the function is already known by
name; what functions have remembered is forgotten. A fault in what runs when a module is loaded needs the tests loaded
anew, in a child of a process that has not loaded them. Either way the checkout is never changed.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.machinery
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from tests.mutations.faults import CHECKOUT, CORE, Mutant, mutated

TESTS = "tests/authority"
LIKELY = ("table", "matrix")
"""Test files that try everything a little: what is wrong at loading shows there first."""
BLIND = ("hash_seed",)
"""Tests whose work is done by another process, where no mutant is."""
MEMORY_MAX = 3 * 1024**3
"""Bytes that a child may take: some mutants never stop to collect."""
LOADING_SECONDS = 60.0
"""What loading the tests may take in a child."""


@dataclass
class Map:
    """What one run of the tests without any fault has shown."""

    seconds: dict[str, float] = field(default_factory=dict)
    """How long each test takes; the tests are those that passed."""
    failed: list[str] = field(default_factory=list)
    runs: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Module and line: the tests that run it."""

    def covering(self, mutant: Mutant) -> set[str]:
        """The tests that can notice the mutant: those that run its statement, or all where it runs at loading."""
        if mutant.place is None:
            return set(self.seconds)
        first, last = mutant.lines
        return set().union(*(self.runs.get((mutant.module, line), ()) for line in range(first, last + 1)))


class Order:
    """Which test to ask first: those that noticed a neighbour, those named for the module, then some of every file, the
    fastest of each first."""

    def __init__(self, known: Map) -> None:
        self.known = known
        self.killers: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def of(self, mutant: Mutant) -> dict[str, float]:
        """The tests in their order, with the seconds that each takes."""
        killers = self.killers[_neighbourhood(mutant)]
        ranks: dict[str, int] = defaultdict(int)
        keys = {}
        for test in sorted(self.known.covering(mutant), key=lambda test: (self.known.seconds[test], test)):
            file = test.partition("::")[0]
            keys[test] = (-killers.get(test, 0), mutant.module not in file, ranks[file], self.known.seconds[test])
            ranks[file] += 1
        return {test: self.known.seconds[test] for test in sorted(keys, key=keys.__getitem__)}

    def learn(self, mutant: Mutant, test: str) -> None:
        self.killers[_neighbourhood(mutant)][test] += 1


def _neighbourhood(mutant: Mutant) -> str:
    return mutant.module if mutant.place is None else f"{mutant.module}.{mutant.place.name}"


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant; ``by`` is the test that noticed it, or why no test can."""

    mutant: Mutant
    killed: bool
    by: str
    seconds: float


UNFIT = "(the code could not be exchanged)"
UNSEEN = "the time was up before all tests were asked"


# --- running tests ----------------------------------------------------------------------------------------------------


class Session:
    """A pytest plugin that hands the collected tests to ``work`` instead of running them."""

    def __init__(self, work: Callable[[dict[str, pytest.Item]], None]) -> None:
        self.work = work

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = {item.nodeid: item for item in session.items if not any(name in item.nodeid for name in BLIND)}
        self.work(tests)
        return True


def load(work: Callable[[dict[str, pytest.Item]], None], files: Sequence[str] = (TESTS,)) -> None:
    """Load the core's tests, or some files of them, into this process and hand them to ``work``."""
    os.chdir(CHECKOUT)
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
    settings.load_profile("mutants")
    options = ["-qq", "-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
    # Hypothesis is loaded already, for its profile.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([*options, *files], plugins=[Session(work)])


def passes(item: pytest.Item) -> bool:
    """Run one test with its own setup and teardown."""
    reports = runtestprotocol(item, log=False, nextitem=None)
    return not any(report.failed for report in reports)


def first_failure(tests: dict[str, pytest.Item], names: dict[str, float], patience: float) -> str | None:
    """The first of the tests that fails; a test that is gone counts as failed. ``UNSEEN`` when the time was up.

    ``names`` has how long each test usually takes; that and ``patience`` are in seconds of processor time.
    """
    until = time.process_time() + patience
    for name, usual in names.items():
        if name in tests:
            # A fault may make a test go on for ever: then the signal ends this process.
            signal.setitimer(signal.ITIMER_VIRTUAL, 3 + 3 * usual)
            passed = passes(tests[name])
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if passed:
                if time.process_time() > until:
                    return UNSEEN
                continue
        return name
    return None


def draw_map(tests: dict[str, pytest.Item]) -> Map:
    """Run every test once and note which lines of the core it runs."""
    known = Map()
    prefix = str(CHECKOUT / CORE) + os.sep
    modules: dict[str, str | None] = {}
    lines: set[tuple[str, int]] = set()

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add((modules[frame.f_code.co_filename] or "", frame.f_lineno))
        return local

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in modules:
            modules[name] = name.removeprefix(prefix).removesuffix(".py") if name.startswith(prefix) else None
        return None if modules[name] is None else local

    for name, item in tests.items():
        # What another test has left remembered would hide the lines that this one needs.
        forget()
        lines.clear()
        started = time.process_time()
        sys.settrace(enter)
        try:
            passed = passes(item)
        finally:
            sys.settrace(None)
        if not passed:
            known.failed.append(name)
            continue
        known.seconds[name] = time.process_time() - started
        for line in lines:
            known.runs[line].add(name)
    return known


def forget() -> None:
    """Empty what functions of the core and of the tests have remembered."""
    for thing in _caches():
        thing.cache_clear()


@functools.cache
def _caches() -> list[functools._lru_cache_wrapper[Any]]:
    """Every remembering function of the core and of the tests; found once, when they are loaded."""
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, functools._lru_cache_wrapper)
        and thing.__module__.split(".")[0] in ("mwnode", "tests")
        and thing.__module__ != __name__
    ]


# --- putting a fault in -----------------------------------------------------------------------------------------------


def find_code(code: CodeType, name: str, line: int) -> CodeType | None:
    """The code of a function, by its qualified name and first line, among what a module's code defines."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if (part.co_qualname, part.co_firstlineno) == (name, line):
                return part
            found = find_code(part, name, line)
            if found is not None:
                return found
    return None


def functions_of_the_core() -> dict[tuple[str, str, int], list[FunctionType]]:
    """Every function of the core that this process knows, by file, qualified name and first line."""
    prefix = str(CHECKOUT / CORE) + os.sep
    found: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith(prefix):
            code = thing.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(thing)
    return found


def exchange(mutant: Mutant, functions: dict[tuple[str, str, int], list[FunctionType]]) -> bool:
    """Put a fault into the functions of this process; whether that could be done."""
    assert mutant.place is not None, "a fault at loading is no function's"
    file = str(CHECKOUT / mutant.path)
    source = (CHECKOUT / mutant.path).read_text(encoding="utf-8")
    whole = compile(mutated(mutant, source), file, "exec", dont_inherit=True)
    code = find_code(whole, mutant.place.name, mutant.place.line)
    targets = functions.get((file, *mutant.place), [])
    if code is None or not targets or any(target.__code__.co_freevars != code.co_freevars for target in targets):
        return False
    for target in targets:
        target.__code__ = code
    forget()
    return True


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module of the core with a fault in it."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant
        self.name = f"mwnode.authority.{mutant.module}"

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(CHECKOUT / self.mutant.path))

    def exec_module(self, module: ModuleType) -> None:
        file = CHECKOUT / self.mutant.path
        module.__file__ = str(file)
        tree = mutated(self.mutant, file.read_text(encoding="utf-8"))
        exec(compile(tree, str(file), "exec", dont_inherit=True), module.__dict__)


# --- children ---------------------------------------------------------------------------------------------------------


@contextmanager
def _silence() -> Iterator[None]:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    yield


def in_child(work: Callable[[], str | None], seconds: float) -> str | None:
    """Run ``work`` in a forked child and give what it gives: the name of a test that failed, or ``None``.

    A child that dies, or takes longer than ``seconds``, has noticed the fault too.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_MAX, MEMORY_MAX))
            with _silence():
                os.write(writer, (work() or "").encode()[:4000])
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    deadline, ended, status = time.monotonic() + seconds, 0, 0
    pause = 0.002
    while ended == 0 and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended == 0:
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)
    if ended == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    if ended == 0:
        return "(it took too long)"
    return said or None if status == 0 else "(the process ended)"


def try_warm(
    chosen: Sequence[Mutant],
    tests: dict[str, pytest.Item],
    order: Order,
    patience: float,
    tell: Callable[[Verdict], None],
) -> list[Mutant]:
    """Try faults in functions, here where the tests are loaded; gives those that cannot be put in that way."""
    functions = functions_of_the_core()
    gc.freeze()  # so that children copy less
    left = []
    for mutant in chosen:
        names = order.of(mutant)
        if not names:
            tell(Verdict(mutant, False, "no test runs it", 0.0))
            continue

        def work(mutant: Mutant = mutant, names: dict[str, float] = names) -> str | None:
            return first_failure(tests, names, patience) if exchange(mutant, functions) else UNFIT

        started = time.monotonic()
        by = in_child(work, _limit(names))
        if by == UNFIT:
            left.append(mutant)
            continue
        _conclude(mutant, by, len(names), time.monotonic() - started, order, tell)
    return left


def try_cold(chosen: Sequence[Mutant], order: Order, patience: float, tell: Callable[[Verdict], None]) -> None:
    """Try faults in what runs at loading, from a process that has not loaded the tests: in the likely files first."""
    for mutant in chosen:
        names = order.of(mutant)
        files = sorted({name.partition("::")[0] for name in names})
        first = [file for file in files if any(part in file for part in (*LIKELY, mutant.module))]
        started = time.monotonic()
        by = None
        for some in (first, [TESTS]):
            if by is None:

                def work(
                    mutant: Mutant = mutant, names: dict[str, float] = names, some: list[str] = some
                ) -> str | None:
                    wanted = {name: names[name] for name in names if some == [TESTS] or name.partition("::")[0] in some}
                    found: list[str | None] = []
                    sys.meta_path.insert(0, Finder(mutant))
                    load(lambda tests: found.append(first_failure(tests, wanted, patience)), some)
                    return found[0] if found else "(the tests cannot be loaded)"

                by = in_child(work, LOADING_SECONDS + _limit(names))
                by = None if by == UNSEEN and some == first else by
        _conclude(mutant, by, len(names), time.monotonic() - started, order, tell)


def _limit(names: dict[str, float]) -> float:
    """Seconds by the clock for some tests: a last resort, since the machine may be busy."""
    return 120 + 10 * sum(names.values())


def _conclude(
    mutant: Mutant, by: str | None, asked: int, seconds: float, order: Order, tell: Callable[[Verdict], None]
) -> None:
    if by is None or by == UNSEEN:
        tell(Verdict(mutant, False, by or f"{asked} tests noticed nothing", seconds))
        return
    if not by.startswith("("):
        order.learn(mutant, by)
    tell(Verdict(mutant, True, by, seconds))
