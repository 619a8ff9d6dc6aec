"""Links that break on purpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mwnode.client.transports import Dial, Transport


class Cut:
    """Cuts each connection when a number of messages has passed in one direction or the other."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self.after_received: Callable[[], int] = lambda: 1_000_000
        self.after_sent: Callable[[], int] = lambda: 1_000_000
        self.connections = 0
        self.sent: list[bytes] = []
        self.received: list[bytes] = []

    async def __call__(self) -> Transport:
        transport = await self._dial()
        self.connections += 1
        return _CutTransport(self, transport)


class _CutTransport:
    def __init__(self, link: Cut, inner: Transport) -> None:
        self._link = link
        self._inner = inner
        self._sends = link.after_sent()
        self._receives = link.after_received()

    async def send(self, messages: Sequence[bytes]) -> None:
        for message in messages:
            if self._sends <= 0:
                await self._inner.close()
                raise ConnectionResetError("cut")
            self._sends -= 1
            self._link.sent.append(message)
            await self._inner.send((message,))

    async def receive(self) -> bytes | None:
        if self._receives <= 0:
            await self._inner.close()
            return None
        self._receives -= 1
        message = await self._inner.receive()
        if message is not None:
            self._link.received.append(message)
        return message

    async def close(self) -> None:
        await self._inner.close()
