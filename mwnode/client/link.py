"""Shell: one connection after another, for ever, with a backoff that grows, is jittered, and starts small again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from mwnode.client.engine import ClientEngine, Notice, Phase, StaleRegistry
from mwnode.client.errors import ConnectionLost, NotTrusted, Unreachable
from mwnode.client.transports import Dial, Transport
from mwnode.protocol.ports import Clock

BACKOFF_FIRST_SECONDS = 0.2
REOPEN_STEPS = 2
"""A node that was there until just now is mostly back at once: so many halvings before the usual first step."""
BACKOFF_MAX_SECONDS = 30.0
STABLE_SECONDS = 10.0
"""A session that lasted so long was a good one."""
TICK_SECONDS = 1.0

Observer = Callable[[str, dict[str, Any]], None]
"""Told what happens to the connection: ``connected``, ``lost``, ``waiting``, ``paused``, ``denied``, ``problem``."""


class Backoff:
    """How long to wait before the next attempt: growing, bounded, and jittered so that clients do not march in step."""

    def __init__(self, jitter: random.Random) -> None:
        self._jitter = jitter
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait now."""
        ceiling = min(BACKOFF_MAX_SECONDS, BACKOFF_FIRST_SECONDS * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return ceiling * self._jitter.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Things went well: a session was open for a good while, so the first steps are smaller than the usual one."""
        self._failures = -REOPEN_STEPS


class Link:
    """Keeps a ``ClientEngine`` connected."""

    def __init__(
        self,
        engine: ClientEngine,
        dial: Dial,
        *,
        clock: Clock,
        jitter: random.Random,
        take: Callable[[Notice], None],
        refresh: Callable[[], Awaitable[None]],
        before_send: Callable[[], None],
        observe: Observer,
    ) -> None:
        """``take`` gets every notice, ``refresh`` fetches the Registry anew, ``before_send`` may queue more frames."""
        self._engine = engine
        self._dial = dial
        self._clock = clock
        self._backoff = Backoff(jitter)
        self._take = take
        self._refresh = refresh
        self._before_send = before_send
        self._observe = observe
        self._wake = asyncio.Event()
        self._opened_at: float | None = None
        self._was_open = False
        self.live = asyncio.Event()
        """Set while there is a session."""

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def opened(self) -> None:
        """The handshake is complete."""
        self._opened_at = self._clock.monotonic()
        self._was_open = True
        self.live.set()

    async def run(self, persistent: Callable[[], bool]) -> None:
        """Connect, and connect again whenever the connection is lost.

        While ``persistent()`` is false the first failure is raised, and one of trust until there was a session: a wrong
        CA does not mend itself, but a server that was trusted once may be between two certificates. Errors that another
        attempt cannot mend are raised whatever ``persistent()`` says.
        """
        while True:
            self._opened_at = None
            cause: BaseException = ConnectionLost("the node closed the connection")
            try:
                await self._session()
            except (Unreachable, ConnectionLost, OSError) as error:
                cause = error
            if not persistent() or (isinstance(cause, NotTrusted) and not self._was_open):
                raise cause
            if self._lasted() >= STABLE_SECONDS:
                self._backoff.reset()
            wait = self._backoff.next()
            self._observe("waiting", {"seconds": wait, "because": str(cause)})
            await asyncio.sleep(wait)

    def _lasted(self) -> float:
        """How long the last session was open, in seconds."""
        return 0.0 if self._opened_at is None else self._clock.monotonic() - self._opened_at

    async def _session(self) -> None:
        """One connection from dialing to its end."""
        transport = await self._dial()
        try:
            self._engine.connect()
            self._wake.set()
            writer = asyncio.create_task(self._write(transport))
            ticker = asyncio.create_task(self._tick())
            try:
                await self._read(transport)
            finally:
                for task in (ticker, writer):
                    task.cancel()
                # Awaiting them one by one would swallow a cancellation of our own, and the client would never end.
                await asyncio.wait((ticker, writer))
                for task in (ticker, writer):
                    if not task.cancelled():
                        task.result()
        finally:
            self.live.clear()
            self._engine.disconnected()
            self._observe("lost", {})
            with suppress(OSError, asyncio.TimeoutError):
                await transport.close()

    async def _read(self, transport: Transport) -> None:
        while True:
            message = await transport.receive()
            if message is None:
                return
            try:
                notices = self._engine.receive(message)
            except StaleRegistry:
                await self._refresh()
                notices = self._engine.receive(message)
            for notice in notices:
                self._take(notice)
            self._wake.set()

    async def _write(self, transport: Transport) -> None:
        """Send what the engine has to send, and notice when the node has fallen silent."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                self._engine.tick()
                if self._engine.phase is Phase.LIVE:
                    self._before_send()
                messages = self._engine.outgoing()
                if messages:
                    await transport.send(messages)
        except (OSError, ConnectionLost):
            # The reader is waiting for a message that will not come: closing ends its wait.
            await transport.close()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._wake.set()
