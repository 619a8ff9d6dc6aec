"""Shell: verifies Commands in chunks on a thread of its own, in the order in which they came.

libsodium releases the interpreter lock for each signature, and every hand-off of that lock costs; so hand-offs are few
and large. A chunk is a quarter of what is pending, between 8 and 64 Commands.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from msgspec import Struct

from mwnode.authority.intake import prepare
from mwnode.authority.request import Request
from mwnode.store.stepping import OnWork
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure, verify_batch

CHUNK_MIN = 8
CHUNK_MAX = 64

logger = logging.getLogger(__name__)


class Submission(Struct):
    """One Command on its way in: its bytes, and who takes the verdict."""

    raw: bytes
    deliver: Callable[[Request | Failure], None]


class Verifier:
    """The six stages as a queue. ``submit`` may be called from any thread; ``deliver`` runs on the verifier's.

    With ``on_work`` there is no thread: whoever is told by it calls ``step``, until there is nothing left to do."""

    def __init__(self, registry: Callable[[], Registry], on_work: OnWork | None = None) -> None:
        self._registry = registry
        self._on_work = on_work
        self._pending: deque[Submission] = deque()
        self._wake = Condition()
        self._closed = False
        self._thread: Thread | None = None
        if on_work is None:
            self._thread = Thread(target=self._run, name="mwnode-verifier", daemon=True)
            self._thread.start()

    @property
    def pending(self) -> int:
        """How many Commands wait."""
        return len(self._pending)

    def submit(self, submission: Submission) -> bool:
        """Queue one Command; False once closed, when it was not taken."""
        with self._wake:
            if self._closed:
                return False
            self._pending.append(submission)
            if self._on_work is not None:
                self._on_work()
            elif len(self._pending) == 1:
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

    def _run(self) -> None:
        while chunk := self._take(wait=True):
            self._verify(chunk)

    def step(self) -> bool:
        """Without a thread: verify one chunk of what waits; whether there was any."""
        chunk = self._take(wait=False)
        if chunk:
            self._verify(chunk)
        return bool(chunk)

    def _verify(self, chunk: list[Submission]) -> None:
        registry = self._registry()
        verdicts = verify_batch([(submission.raw, "command") for submission in chunk], registry)
        for submission, verdict in zip(chunk, verdicts, strict=True):
            try:
                submission.deliver(verdict if isinstance(verdict, Failure) else prepare(verdict, registry))
            except Exception:
                # One Command's fault must not end the thread that all others depend on.
                logger.exception("delivering a verified Command failed")

    def _take(self, *, wait: bool) -> list[Submission]:
        with self._wake:
            while wait and not self._pending and not self._closed:
                self._wake.wait()
            size = min(CHUNK_MAX, max(CHUNK_MIN, len(self._pending) // 4))
            return [self._pending.popleft() for _ in range(min(size, len(self._pending)))]
