"""Where a node is, in any of the spellings people use, and how it is trusted."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from mwnode.client.errors import ClientError, Unreachable


class Address(Struct, frozen=True):
    """Host and port of one node."""

    host: str
    port: int
    secure: bool

    @property
    def _netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def websocket(self) -> str:
        return f"{'wss' if self.secure else 'ws'}://{self._netloc}/ws"

    @property
    def http(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self._netloc}"


def parse_address(url: str) -> Address:
    """The node that a ``wss`` or ``https`` URL names, on this machine also ``ws`` or ``http``, else ClientError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ClientError(f"{url!r} is no URL of a node ({error}): give one like wss://127.0.0.1:8765/ws") from error
    if parts.scheme not in {"wss", "https", "ws", "http"} or not parts.hostname:
        raise ClientError(f"{url!r} is no URL of a node: give one like wss://127.0.0.1:8765/ws")
    if parts.path.rstrip("/") not in {"", "/ws"} or parts.query or parts.fragment or parts.username is not None:
        raise ClientError(f"{url!r} is no URL of a node: nothing but /ws may follow the port, and no name precede it")
    secure = parts.scheme in {"wss", "https"}
    if not secure and not is_loopback(parts.hostname):
        raise ClientError(f"{url!r} is not encrypted: plain text is for loopback addresses only, use wss://")
    return Address(parts.hostname, port or (443 if secure else 80), secure)


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def client_tls(address: Address, ca: Path | str | None) -> ssl.SSLContext | None:
    """TLS 1.3 towards a server whose certificate comes from ``ca``, or from the system's CAs when it is ``None``.

    ``None`` for an unencrypted address. Unreachable when the CA file cannot be used (R-17.1-01).
    """
    if not address.secure:
        return None
    try:
        context = ssl.create_default_context(cafile=str(ca) if ca is not None else None)
    except OSError as error:
        raise Unreachable(f"the CA file {ca} cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context
