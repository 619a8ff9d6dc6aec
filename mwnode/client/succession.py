"""Who holds an Agent's session: of two processes with one key the newer wins, and the older one says so (R-6.3-06)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mwnode.client.engine import ClientEngine
from mwnode.client.errors import ClientError
from mwnode.client.http import HttpClient
from mwnode.client.link import Observer
from mwnode.protocol.errors import AuthStaleSession, MissionWeaveError
from mwnode.trust.keys import SigningKey

SESSIONS = "/v0.1/sessions"
HOLDER_SECONDS = 2.0
"""How long a replaced client waits to be told by whom: what it runs is to be stopped soon."""


class Succession:
    """Asks the node who holds one Agent's session. A client without an HTTP side cannot ask."""

    def __init__(self, key: SigningKey, engine: ClientEngine, http: HttpClient | None, observe: Observer) -> None:
        self._key = key
        self._engine = engine
        self._http = http
        self._observe = observe

    async def told(self, error: AuthStaleSession) -> AuthStaleSession:
        """The same error, and who holds the session now, as far as the node tells."""
        told = f"another process uses the key of {self._key.principal.id} and has replaced this one"
        if self._http is not None:
            try:
                async with asyncio.timeout(HOLDER_SECONDS):
                    told += _holder(await asyncio.to_thread(self._http.get, SESSIONS))
            except (ClientError, MissionWeaveError, TimeoutError) as unknown:
                self._observe("waits", {"path": SESSIONS, "because": str(unknown)})
        ours = self._engine.session_epoch
        replaced = AuthStaleSession(f"{told}; this one had Session Epoch {ours}", rule="R-6.3-06")
        replaced.__cause__ = error
        return replaced

    async def replaced(self, get: Callable[[str], Awaitable[Mapping[str, Any]]]) -> str | None:
        """Since when and from where another process was connected that this client has just put an end to, if any."""
        older = None if self._http is None else (await get(SESSIONS)).get("replaced")
        return None if older is None else _holder(older)


def _holder(session: Mapping[str, Any]) -> str:
    """Since when, from where and by which key a session is held, to be put behind a sentence."""
    if not session.get("openedAt"):
        return f" (Session Epoch {session['sessionEpoch']}, not connected at this moment)"
    address = f" from {session['address']}" if session.get("address") else ""
    return f" since {session['openedAt']}{address} (Session Epoch {session['sessionEpoch']}, key {session['keyId']})"
