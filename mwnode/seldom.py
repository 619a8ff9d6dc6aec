"""Log lines that others can cause at will: a few of each kind in a while, and how many there were besides. Pure."""

from __future__ import annotations

import logging
from collections.abc import Callable

SECONDS = 60.0
KINDS_MAX = 1024
"""Kinds told apart; what comes beyond them shares one."""
_OTHERS = "others"


class _Kind:
    __slots__ = ("count", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0


class Seldom:
    """Writes at most ``burst`` lines of a kind in ``seconds``; the first of the next while says what was left out."""

    def __init__(
        self, logger: logging.Logger, monotonic: Callable[[], float], *, burst: int = 1, seconds: float = SECONDS
    ) -> None:
        self._logger = logger
        self._monotonic = monotonic
        self._burst = burst
        self._seconds = seconds
        self._kinds: dict[str, _Kind] = {}

    def left_out(self, kind: str) -> int | None:
        """Count one more of a kind: ``None`` when nothing is to be said, else how many were passed over in silence."""
        now = self._monotonic()
        known = self._kinds.get(kind)
        if known is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds = {name: each for name, each in self._kinds.items() if now - each.since < self._seconds}
            if len(self._kinds) >= KINDS_MAX:
                kind = _OTHERS
            known = self._kinds.setdefault(kind, _Kind(now))
        passed_over = 0
        if now - known.since >= self._seconds:
            passed_over = max(0, known.count - self._burst)
            known.since, known.count = now, 0
        known.count += 1
        return passed_over if known.count <= self._burst else None

    def log(self, level: int, kind: str, message: str, *arguments: object) -> None:
        """Write a line, unless enough of its kind were written."""
        passed_over = self.left_out(kind)
        if passed_over is None:
            return
        if passed_over:
            message, arguments = f"{message} (and %d like it before)", (*arguments, passed_over)
        self._logger.log(level, message, *arguments)
