"""The machine's own clock and randomness, the only place in mwnode that reads either; and the process's limits."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress

from mwnode.protocol.instants import Instant, from_microseconds


class SystemClock:
    """Wall time to the microsecond, and a monotonic time in seconds; a `protocol.ports.Clock`."""

    def now(self) -> Instant:
        """The present instant, cut to whole microseconds, the resolution that mwnode writes."""
        return from_microseconds(time.time_ns() // 1_000)

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never runs backwards, so deadlines are counted in it."""
        return time.monotonic()


class OsEntropy:
    """The operating system's random source; a `protocol.ports.Entropy`."""

    def random(self, n: int) -> bytes:
        """`n` unpredictable bytes, fit for keys and nonces."""
        return os.urandom(n)


def raise_file_limit() -> None:
    """Allow this process as many open files as it may have: every connection is one."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != most:
        with suppress(OSError, ValueError):  # some systems do not let it come near what they call unlimited
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
