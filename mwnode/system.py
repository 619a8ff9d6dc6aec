"""The machine's own clock and randomness, the only place in mwnode that reads either; and the process's limits."""

from __future__ import annotations

import os
import resource
import secrets
import socket
import time
from contextlib import suppress

from mwnode.protocol.instants import Instant, from_microseconds

LASTING_PORTS = range(20_000, 30_000)
"""Below what systems hand out by themselves: 32,768 and up on Linux, 49,152 and up by RFC 6335."""
_TRIES = 32


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


def is_free(host: str, port: int) -> bool:
    """Whether a port of this machine can be listened on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def lasting_port(host: str) -> int:
    """A free port that is likely to be free again after a restart; 0, for any, when none is found.

    A port that the system chooses is one of those that it gives to whatever connects to anywhere, and may be lost to
    such a connection while the node is away.
    """
    tried = (secrets.choice(LASTING_PORTS) for _ in range(_TRIES))
    return next((port for port in tried if is_free(host, port)), 0)
