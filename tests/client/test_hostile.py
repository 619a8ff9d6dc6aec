"""Nodes that are not what they should be: a clear error, and nothing left open."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from mwnode.client import Client, ClientError, HttpClient, Unreachable
from mwnode.client.errors import NotTrusted
from mwnode.client.link import Link
from mwnode.client.transports import WebSocketTransport, websocket_dialer
from mwnode.gateway.server import serve, server_tls
from mwnode.testing import Harness
from tests.gateway.test_server import Tls, tls
from tests.patience import PATIENCE_SECONDS

__all__ = ["tls"]


class Answers(BaseHTTPRequestHandler):
    """Answers everything with the same document."""

    status = 200
    document = b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.document)))
        self.end_headers()
        self.wfile.write(self.document)

    do_POST = do_GET  # noqa: N815  # the name is what http.server looks for

    def log_message(self, *_: Any) -> None:
        return None


@pytest.fixture
def hostile() -> Iterator[Any]:
    answers = type("Mine", (Answers,), {})
    server = HTTPServer(("127.0.0.1", 0), answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield answers
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("status", [200, 400])
def test_json_without_end_does_not_fill_the_memory(hostile: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwnode.client.http.JSON_BYTES", 1000)
    hostile.status, hostile.document = status, b'{"a":"' + b"b" * 992 + b'"}'
    with HttpClient(hostile.url) as client:
        if status == 200:
            assert client.get("/healthz")["a"] == "b" * 992
        hostile.document = b'{"a":"' + b"b" * 993 + b'"}'
        with pytest.raises(ClientError, match="more than 1000 bytes"):
            client.get("/healthz")


@pytest.mark.parametrize("status", [200, 400])
def test_json_that_is_nested_without_end_is_a_clear_error(hostile: Any, status: int) -> None:
    hostile.status, hostile.document = status, b"[" * 500_000
    with HttpClient(hostile.url) as client, pytest.raises(ClientError, match=r"nested too deeply|answered 400"):
        client.get("/v0.1/missions")


@pytest.mark.req("R-13.1-21", "R-13.1-02")
@pytest.mark.parametrize("sent", [b"other bytes", b"the byte", b"the bytes and more", b""])
def test_other_bytes_under_the_same_address_are_not_the_artifact(hostile: Any, tmp_path: Path, sent: bytes) -> None:
    content_hash, target = f"sha256:{hashlib.sha256(b'the bytes').hexdigest()}", tmp_path / "artifact"
    target.write_bytes(b"what was there before")
    hostile.document = sent
    with HttpClient(hostile.url) as client:
        with pytest.raises(ClientError, match="the node sent other bytes than"):
            client.get_artifact(content_hash, target)
        assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
            ("artifact", b"what was there before")
        ]
        hostile.document = b"the bytes"
        assert client.get_artifact(content_hash, target) == 9
    assert target.read_bytes() == b"the bytes"


def test_a_session_without_a_token_is_a_clear_error(hostile: Any, mwnode: Harness, monkeypatch: Any) -> None:
    hostile.document = b'{"challenge":"e30"}'
    monkeypatch.setattr("mwnode.client.http.session_challenge", lambda *_, **__: b"x")
    with HttpClient(hostile.url, mwnode.owner.key) as client, pytest.raises(ClientError, match="without a token"):
        client.authenticate()


@pytest.mark.req("R-17.1-01")
async def test_a_patient_client_does_not_wait_for_another_ca(mwnode: Harness, tls: Tls, tmp_path: Any) -> None:
    (tmp_path / "other").mkdir()
    other = Tls(tmp_path / "other")
    server = await serve(mwnode.node, tls=server_tls(tls.certificate, tls.key))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(NotTrusted, match="not trusted"):
                await Client.connect(server.url, mwnode.workers[0].key, other.ca, clock=mwnode.clock, patient=True)
    finally:
        await server.close()


async def test_a_server_that_was_trusted_once_is_waited_for(mwnode: Harness, monkeypatch: Any) -> None:
    calls = 0
    monkeypatch.setattr("mwnode.client.link.BACKOFF_FIRST_SECONDS", 0.001)

    async def dial() -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            link.opened()
        raise NotTrusted("between two certificates") if calls < 4 else ValueError("the end")

    def ignore(*_: Any) -> None:
        return None

    async def refresh() -> None:
        return None

    link = Link(
        None,  # type: ignore[arg-type]  # no session comes about
        dial,
        clock=mwnode.clock,
        jitter=random.Random(1),
        take=ignore,
        refresh=refresh,
        before_send=lambda: None,
        observe=ignore,
    )
    with pytest.raises(ValueError, match="the end"):
        await link.run(lambda: True)
    assert calls == 4


async def test_what_cannot_be_reached_is_told_without_objects(tls: Tls) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(Unreachable) as caught:
            await websocket_dialer(f"wss://127.0.0.1:{taken.getsockname()[1]}/ws", tls.ca)()
    assert "SSLContext" not in str(caught.value)
    assert " object at " not in str(caught.value)


async def test_a_close_that_is_cut_short_leaves_no_session_open() -> None:
    closed: list[str] = []

    class Socket:
        async def close(self) -> None:
            raise asyncio.CancelledError

    class Session:
        async def close(self) -> None:
            closed.append("session")

    transport = WebSocketTransport(Session(), Socket())  # type: ignore[arg-type]  # only their ends matter here
    with pytest.raises(asyncio.CancelledError):
        await transport.close()
    assert closed == ["session"]


async def test_a_close_while_the_link_is_being_taken_down_ends_the_client(mwnode: Harness) -> None:
    sending = asyncio.Event()

    class Stuck:
        async def send(self, messages: Any) -> None:
            sending.set()
            try:
                await asyncio.sleep(3600)
            finally:
                # Takes a while to end, so that the client is closed meanwhile.
                await asyncio.sleep(0.1)

        async def receive(self) -> None:
            await sending.wait()

        async def close(self) -> None:
            return None

    async def dial() -> Any:
        sending.clear()
        return Stuck()

    client = Client(mwnode.workers[0].key, dial, clock=mwnode.clock)
    starting = asyncio.create_task(client.start(patient=True))
    await sending.wait()
    await asyncio.sleep(0.05)
    closing = asyncio.create_task(client.close())
    done, _ = await asyncio.wait({closing}, timeout=PATIENCE_SECONDS)
    assert done
    with pytest.raises(ClientError, match="closed"):
        await starting
