"""A client whose link was cut finds out who holds its Agent's session before it connects again (R-6.3-06)."""

from __future__ import annotations

import asyncio

import pytest

from mwnode.client import Client, link
from mwnode.client.http import HttpClient
from mwnode.protocol.errors import AuthForbidden, AuthStaleSession
from tests.client.proxy import CuttingProxy
from tests.gateway.conftest import Served
from tests.patience import until

pytestmark = pytest.mark.req("R-6.3-06")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "BACKOFF_FIRST_SECONDS", 0.02)
    monkeypatch.setattr(link, "BACKOFF_MAX_SECONDS", 0.05)


async def test_the_older_steps_aside_instead_of_fencing_the_newer(served: Served) -> None:
    key, frames = served.harness.workers[0].key, [3]
    # Three frames bring the first one to the end of its handshake; later links end before theirs.
    proxy = CuttingProxy(served.server.port, lambda number: 1000 if number == 0 else frames[0])
    older = await Client.connect(f"ws://127.0.0.1:{await proxy.start()}/ws", key)
    newer = None
    try:
        # Its own handshakes whose end it never hears open Session Epochs too; those do not make it step aside.
        proxy.cut()
        await until(lambda: proxy.websockets >= 4)
        assert older.failure is None
        # Between its look and its connection somebody else may come: only chance would decide, so now it has neither.
        proxy.shut = True
        proxy.cut()
        await until(lambda: not proxy.carries and not served.hub.connections)
        newer = await Client.connect(f"ws://127.0.0.1:{served.server.port}/ws", key)
        frames[0] = 1000
        proxy.shut = False
        with pytest.raises(AuthStaleSession, match=rf"since 20.* \(Session Epoch {newer.session_epoch}, key"):
            await anext(older.events())
        await asyncio.sleep(0.3)
        assert newer.connected
        assert newer.failure is None
        assert (await newer.get("/v0.1/sessions"))["sessionEpoch"] == newer.session_epoch
    finally:
        await older.close()
        if newer is not None:
            await newer.close()
        await proxy.close()


async def test_only_an_agent_is_told_of_its_own_session(served: Served) -> None:
    worker, address = served.harness.workers[0], f"ws://127.0.0.1:{served.server.port}/ws"
    with HttpClient(address, worker.key) as http:
        before = await asyncio.to_thread(http.get, "/v0.1/sessions")
        assert before == {
            "agentId": worker.key.principal.id,
            "sessionEpoch": worker.session_epoch,
            "connected": False,
        }
        async with await Client.connect(address, worker.key):
            told = await asyncio.to_thread(http.get, "/v0.1/sessions")
        assert (told["sessionEpoch"], told["connected"], told["keyId"]) == (
            before["sessionEpoch"] + 1,
            True,
            worker.key.key_id,
        )
        assert "replaced" not in told
    with HttpClient(address, served.harness.owner.key) as http, pytest.raises(AuthForbidden):
        await asyncio.to_thread(http.get, "/v0.1/sessions")
