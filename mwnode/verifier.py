"""Shell: verifies Commands in chunks on a thread of its own, in the order in which they came.

libsodium releases the interpreter lock for each signature, and every hand-off of that lock costs; so hand-offs are few
and large. A chunk is a quarter of what is pending, between 8 and 64 Commands. Under load the equations of one chunk are
checked by a helper process while the next chunk is read here. A lone Command is verified by whoever brings it: that
saves a hand-off, and nobody else waits.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Final

from msgspec import Struct

from mwnode.authority.intake import prepare
from mwnode.authority.request import Request
from mwnode.equations import EquationHelper
from mwnode.protocol.documents import DocumentKind
from mwnode.store.stepping import OnWork
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, Prepared, Verified, finish_batch, prepare_batch, verify_batch

CHUNK_MIN: Final = 8
CHUNK_MAX: Final = 64
HELPED_MIN: Final = 16
"""Commands in a chunk that is worth another process's while."""
HELPER_IDLE_SECONDS: Final = 30.0
"""How long a helper without work is kept."""
HELPER_PAUSE_SECONDS, HELPER_PAUSE_MAX_SECONDS = 1.0, 300.0
"""How long after one has failed another one is started: at first, and at most."""
HELPER_GOOD_SECONDS = 60.0
"""A helper that lasted so long failed for a reason of its own."""
LONE_BYTES_MAX: Final = 16 * 1024
"""Bytes of a Command that its bringer verifies: a large one would keep an event loop from everybody else."""

logger = logging.getLogger(__name__)


class Submission(Struct):
    """One Command on its way in: its bytes, and who takes the verdict."""

    raw: bytes
    deliver: Callable[[Request | Failure], None]


class _Chunk(Struct):
    """Commands of which the equations may be with the helper."""

    submissions: list[Submission]
    registry: Registry
    prepared: list[Prepared | None]
    sent: int = 0
    """How many equations the helper has of it."""


_COMMAND: Final[DocumentKind] = "command"


def helper_wanted() -> bool:
    """Whether there is another processor for a helper to run on."""
    if not sys.executable:
        return False
    return (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1) > 1


class Verifier:
    """The six stages as a queue. ``submit`` may be called from any thread; ``deliver`` runs on the verifier's, or in
    ``submit`` while ``quiet`` says that nothing else goes on.

    With ``on_work`` there is no thread: whoever is told by it calls ``step``, until there is nothing left to do."""

    def __init__(
        self,
        registry: Callable[[], Registry],
        on_work: OnWork | None = None,
        *,
        quiet: Callable[[], bool] = lambda: False,
        helped: bool | None = None,
    ) -> None:
        """``helped`` says whether a helper may be started; by default when there is another processor."""
        self._registry = registry
        self._on_work = on_work
        self._quiet = quiet
        self._pending: deque[Submission] = deque()
        self._wake = Condition()
        self._closed = False
        self._idle = False
        """Whether the thread waits."""
        self._bringing = False
        """Whether somebody verifies in its place."""
        self._helped = helper_wanted() if helped is None else helped
        self._helper: EquationHelper | None = None
        self._started: float | None = None
        """When the present helper was started, monotonic seconds; so are the others."""
        self._next_try, self._pause = 0.0, HELPER_PAUSE_SECONDS
        self._thread: Thread | None = None
        if on_work is None:
            self._thread = Thread(target=self._run, name="mwnode-verifier", daemon=True)
            self._thread.start()

    @property
    def pending(self) -> int:
        """How many Commands wait."""
        return len(self._pending)

    def submit(self, submission: Submission) -> bool:
        """Queue one Command, or verify it at once; False once closed, when it was not taken."""
        with self._wake:
            if self._closed:
                return False
            free = self._idle and not self._bringing and not self._pending
            lone = free and len(submission.raw) <= LONE_BYTES_MAX and self._quiet()
            if lone:
                self._bringing = True
            else:
                self._pending.append(submission)
                if self._on_work is not None:
                    self._on_work()
                elif self._idle:
                    self._wake.notify()
        if lone:
            try:
                self._verify([submission])
            finally:
                with self._wake:
                    self._bringing = False
                    if self._pending or self._closed:
                        self._wake.notify()
        return True

    def close(self) -> None:
        """Verify what is queued, then end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
            return
        while self.step():
            pass

    def step(self) -> bool:
        """Without a thread: verify one chunk of what waits; whether there was any."""
        with self._wake:
            chunk = self._pop()
        if chunk:
            self._verify(chunk)
        return bool(chunk)

    # --- the thread ---

    def _run(self) -> None:
        under_way: _Chunk | None = None
        while True:
            submissions = self._take(wait=under_way is None)
            begun = self._begin(submissions) if submissions else None
            if under_way is not None:
                self._finish(under_way)
                under_way = None
            elif begun is None:
                self._end_helper()
                if self._closed:
                    return
            if begun is not None and begun.sent:
                under_way = begun
            elif begun is not None:
                self._finish(begun)

    def _take(self, *, wait: bool) -> list[Submission]:
        """The next chunk. Empty when all is over, when a helper had no work for long, or at once without ``wait``."""
        with self._wake:
            if wait:
                self._idle = True
                while self._bringing or not (self._pending or self._closed):
                    if not self._wake.wait(None if self._helper is None else HELPER_IDLE_SECONDS):
                        break
                self._idle = False
            return [] if self._bringing else self._pop()

    def _pop(self) -> list[Submission]:
        size = min(CHUNK_MAX, max(CHUNK_MIN, len(self._pending) // 4))
        return [self._pending.popleft() for _ in range(min(size, len(self._pending)))]

    def _begin(self, submissions: list[Submission]) -> _Chunk:
        """Everything but the equations; those go to the helper where there is one."""
        registry = self._registry()
        chunk = _Chunk(submissions, registry, prepare_batch([(each.raw, _COMMAND) for each in submissions], registry))
        if len(submissions) >= HELPED_MIN:
            helper = self._ready_helper()
            equations = [each.equation for each in chunk.prepared if each is not None]
            if helper is not None and equations and helper.send(equations):
                chunk.sent = len(equations)
        return chunk

    def _finish(self, chunk: _Chunk) -> None:
        told: list[bool] | None = None
        if chunk.sent and self._helper is not None:
            told = self._helper.receive(chunk.sent)
        if told is None:
            held = [each is not None and each.holds() for each in chunk.prepared]
        else:
            answers = iter(told)
            held = [each is not None and next(answers) for each in chunk.prepared]
        items = [(each.raw, _COMMAND) for each in chunk.submissions]
        self._deliver(chunk.submissions, finish_batch(items, chunk.prepared, held, chunk.registry), chunk.registry)

    def _verify(self, submissions: list[Submission]) -> None:
        registry = self._registry()
        self._deliver(submissions, verify_batch([(each.raw, _COMMAND) for each in submissions], registry), registry)

    def _deliver(self, submissions: list[Submission], verdicts: list[Verified | Failure], registry: Registry) -> None:
        for submission, verdict in zip(submissions, verdicts, strict=True):
            try:
                submission.deliver(verdict if isinstance(verdict, Failure) else prepare(verdict, registry))
            except Exception:
                # One Command's fault must not end the thread that all others depend on.
                logger.exception("delivering a verified Command failed")

    # --- the helper ---

    def _ready_helper(self) -> EquationHelper | None:
        """The helper, once it has started; the first who asks has it started."""
        if self._helper is not None and self._helper.gone:
            self._try_later()
        if self._helper is None and self._helped and time.monotonic() >= self._next_try:
            try:
                self._helper = EquationHelper()
            except OSError as error:
                self._try_later()
                logger.warning("no helper can be started (%s); signatures are checked on a thread meanwhile", error)
            else:
                self._started = time.monotonic()
        return self._helper if self._helper is not None and self._helper.ready else None

    def _try_later(self) -> None:
        """It failed: another one is started after a pause that grows while they fail soon."""
        now = time.monotonic()
        if self._started is not None and now - self._started >= HELPER_GOOD_SECONDS:
            self._pause = HELPER_PAUSE_SECONDS
        self._helper, self._started, self._next_try = None, None, now + self._pause
        self._pause = min(2 * self._pause, HELPER_PAUSE_MAX_SECONDS)

    def _end_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()
