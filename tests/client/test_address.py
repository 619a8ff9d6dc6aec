"""Addresses of nodes and the trust in them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from mwnode.client.address import client_tls, parse_address
from mwnode.client.errors import ClientError, Unreachable

GOOD = {
    "wss://node.example:8765/ws": ("wss://node.example:8765/ws", "https://node.example:8765"),
    "https://node.example": ("wss://node.example:443/ws", "https://node.example:443"),
    "ws://127.0.0.1:80": ("ws://127.0.0.1:80/ws", "http://127.0.0.1:80"),
    "http://[::1]:8765": ("ws://[::1]:8765/ws", "http://[::1]:8765"),
    "ws://localhost:1/ws": ("ws://localhost:1/ws", "http://localhost:1"),
}


@pytest.mark.parametrize("url", GOOD)
def test_one_url_names_both_sides(url: str) -> None:
    address = parse_address(url)
    assert (address.websocket, address.http) == GOOD[url]


@pytest.mark.req("R-17.1-01")
@pytest.mark.parametrize("url", ["ws://node.example/ws", "http://10.0.0.1", "ftp://x", "127.0.0.1:8765", "wss://", ""])
def test_other_urls_are_refused_with_advice(url: str) -> None:
    with pytest.raises(ClientError, match="wss://"):
        parse_address(url)


@pytest.mark.parametrize(
    "url",
    [
        "wss://h:1/other",
        "https://h:1/v0.1",
        "ws://localhost:1/ws/x",
        "wss://h:1/ws?a=b",
        "wss://h:1/#ws",
        "wss://me@h:1",
    ],
)
def test_a_wrong_path_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match="/ws"):
        parse_address(url)


def test_a_slash_at_the_end_is_no_other_path() -> None:
    assert parse_address("wss://h:1/") == parse_address("wss://h:1/ws/") == parse_address("wss://h:1")


@pytest.mark.parametrize("url", ["wss://x:99999/ws", "wss://[::1/ws"])
def test_broken_urls_are_refused_without_a_traceback(url: str) -> None:
    with pytest.raises(ClientError):
        parse_address(url)


@pytest.mark.req("R-17.1-01")
def test_only_tls_1_3_will_do(tmp_path: Path) -> None:
    context = client_tls(parse_address("wss://127.0.0.1:1/ws"), None)
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert client_tls(parse_address("ws://127.0.0.1:1/ws"), None) is None
    with pytest.raises(Unreachable, match="CA file"):
        client_tls(parse_address("wss://127.0.0.1:1/ws"), tmp_path / "none.pem")
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(Unreachable, match="CA file"):
        client_tls(parse_address("wss://127.0.0.1:1/ws"), tmp_path / "bad.pem")
