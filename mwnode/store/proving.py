"""Documents examined many at a time: here, in helper processes beside, and by what an interrupted check left.

Helpers get documents over a pipe and answer with what is wrong; none of them opens the file. Answers come in the order
of the questions, so that a check on many cores finds the same in the same order as one on a single core.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import IO, Any, Final, TypeVar

import msgspec
from msgspec import Struct

from mwnode.protocol.documents import Actor
from mwnode.store.examining import Asked, Examined, examine
from mwnode.store.resuming import Resuming
from mwnode.trust.registry import Registry

T = TypeVar("T")

BATCH: Final = 128
"""Documents handed over together: some ten milliseconds of work."""
AHEAD: Final = 4
"""Batches read ahead for each process."""
HELP_FROM: Final = 4096
"""Documents from which on helpers are started: starting one takes as long as examining a thousand."""

_LENGTH = struct.Struct(">I")
_QUESTIONS: Final = msgspec.msgpack.Decoder(list[Asked])
_ANSWERS: Final = msgspec.msgpack.Decoder(list[Examined])
_encode = msgspec.msgpack.Encoder().encode


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class HelperLost(Exception):
    """A helper process ended before it answered."""


class _Setting(Struct, frozen=True):
    """What a helper needs to know once."""

    evidence: dict[str, Any]
    authority: Actor | None


class Prover:
    """Examines documents for one check; ``jobs`` counts processes, this one included. Close it."""

    def __init__(self, registry: Registry, authority: Actor | None, jobs: int = 1) -> None:
        self._registry = registry
        self._authority = authority
        self._jobs = jobs
        self._local = threading.local()
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.resuming: Resuming | None = None

    @property
    def setting(self) -> bytes:
        """Everything that an answer depends on beside the document."""
        return _encode(_Setting(self._registry.export(), self._authority))

    def examine(self, items: Iterable[T], ask: Any, total: int) -> Iterator[tuple[T, Examined | None]]:
        """Each item with the answer to ``ask(item)``, in order; ``None`` where that is no question.

        ``total`` says about how many there are. Items are read ahead; what reading raises is raised in its turn.
        """
        if self._jobs > 1 and total >= HELP_FROM and self._pool is None:
            self._pool = ThreadPoolExecutor(self._jobs - 1, thread_name_prefix="mwnode-prover")
        source = iter(items)
        fault: Exception | None = None
        waiting: deque[_Batch] = deque()
        while True:
            while fault is None and len(waiting) < (AHEAD * self._jobs if self._pool else 1):
                read: list[T] = []
                try:
                    # Item by item: extend() would lose those before a fault.
                    for item in islice(source, BATCH):
                        read.append(item)
                except Exception as error:
                    fault = error
                if not read:
                    break
                waiting.append(self._batch(read, [ask(item) for item in read]))
            if not waiting:
                break
            yield from self._settled(waiting)
        if fault is not None:
            raise fault

    def _batch(self, items: list[T], asked: list[Asked | None]) -> _Batch:
        questions = [each for each in asked if each is not None]
        batch = _Batch(items, asked, questions, _encode(questions))
        if self.resuming is not None:
            batch.answers = self.resuming.known(batch.encoded)
        if batch.answers is None and questions and self._pool is not None:
            batch.future = self._pool.submit(self._ask, batch.encoded)
        return batch

    def _settled(self, waiting: deque[_Batch]) -> list[tuple[T, Examined | None]]:
        """The first batch with its answers. While a helper has it, this process works on the last ones."""
        first = waiting.popleft()
        if first.answers is None:
            while first.future is not None and not first.future.done() and not first.future.cancel():
                others = (each for each in reversed(waiting) if each.future is not None and each.future.cancel())
                if (other := next(others, None)) is None:
                    break
                other.answers, other.future = self._inline(other), None
            first.answers = self._outcome(first)
            if self.resuming is not None:
                self.resuming.keep(first.encoded, first.answers)
        answers = iter(first.answers)
        return [
            (item, None if asked is None else next(answers))
            for item, asked in zip(first.items, first.asked, strict=True)
        ]

    def _outcome(self, batch: _Batch) -> list[Examined]:
        if batch.future is not None and not batch.future.cancelled():
            try:
                return batch.future.result()
            except HelperLost:
                # What a helper cannot do is done here; the documents themselves cannot end a process.
                self._jobs = 1
        return self._inline(batch)

    def _inline(self, batch: _Batch) -> list[Examined]:
        return [examine(each, self._registry, self._authority) for each in batch.questions]

    # --- in the pool's threads ---

    def _ask(self, questions: bytes) -> list[Examined]:
        helper = getattr(self._local, "helper", None)
        if helper is None:
            helper = self._local.helper = self._start()
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            _put(helper.stdin, questions)
            return _ANSWERS.decode(_get(helper.stdout))
        except (OSError, EOFError) as error:
            raise HelperLost(f"a helper of the check ended with status {helper.poll()}") from error

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mwnode.store.proving"]
        helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with self._lock:
            self._helpers.append(helper)
        assert helper.stdin is not None
        try:
            _put(helper.stdin, self.setting)
        except OSError as error:
            raise HelperLost("a helper of the check did not start") from error
        return helper

    def close(self) -> None:
        """End the helpers."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        for helper in self._helpers:
            helper.kill()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        for helper in self._helpers:
            helper.communicate()


class _Batch(Struct, eq=False):
    """Some items, and what becomes of their questions."""

    items: list[Any]
    asked: list[Asked | None]
    questions: list[Asked]
    encoded: bytes
    future: Future[list[Examined]] | None = None
    answers: list[Examined] | None = None


def _put(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(_LENGTH.pack(len(message)) + message)
    pipe.flush()


def _get(pipe: IO[bytes]) -> bytes:
    """One message; EOFError when there is no more."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    message = pipe.read(length)
    if len(message) < length:
        raise EOFError
    return message


def main() -> None:
    """A helper: the setting first, then batch after batch until there is no more."""
    asking, answering = sys.stdin.buffer, sys.stdout.buffer
    setting = msgspec.msgpack.decode(_get(asking), type=_Setting)
    registry = Registry.from_evidence(setting.evidence)
    while True:
        try:
            questions = _QUESTIONS.decode(_get(asking))
        except EOFError:
            return
        _put(answering, _encode([examine(each, registry, setting.authority) for each in questions]))


if __name__ == "__main__":
    main()
