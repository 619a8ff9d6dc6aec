"""A synchronous client of the node's HTTP surface: for humans, services, scripts, and for Artifacts."""

from __future__ import annotations

import hashlib
import http.client
import io
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from mwnode.client.address import client_tls, parse_address
from mwnode.client.challenges import session_challenge
from mwnode.client.commands import signed_command
from mwnode.client.derivations import Direction, Provenances
from mwnode.client.errors import ClientError, NotTrusted, Unreachable
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, ErrorDocument, MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.ports import Clock, Entropy
from mwnode.system import OsEntropy, SystemClock
from mwnode.trust.ed25519 import decode_base64url, encode_base64url
from mwnode.trust.keys import SigningKey

TIMEOUT_SECONDS = 30.0
JSON_BYTES = 64 * 1024 * 1024
"""Largest JSON answer that is taken: a server that is not the one it should be must not fill this process's memory."""
_CHUNK_BYTES = 256 * 1024


def segment(identifier: str) -> str:
    """An identifier as one path segment."""
    return quote(identifier, safe="")


class HttpClient:
    """One node over HTTP. Without a key only what needs no session can be asked. May be used from several threads.

    Raises the ``MissionWeaveError`` of the code that the node answers, ``Unreachable`` when there is no trusted
    connection, ``ChallengeRefused`` when the server asks for a signature over anything but its session challenge.
    """

    def __init__(
        self,
        url: str,
        key: SigningKey | None = None,
        ca: Path | str | None = None,
        *,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.address = parse_address(url)
        self.key = key
        self._tls = client_tls(self.address, ca)
        self._clock = clock or SystemClock()
        self._entropy = entropy or OsEntropy()
        self._timeout = timeout
        self._token: str | None = None
        self._authenticating = threading.Lock()
        self._local = threading.local()
        self._connections: set[http.client.HTTPConnection] = set()

    # --- Commands ---

    def command(self, document: Mapping[str, Any] | bytes) -> dict[str, Any]:
        """Hand in one signed Command; ``{"events": [...]}``, receipt first. The same bytes may be handed in again."""
        body = document if isinstance(document, bytes) else msgspec.json.encode(document)
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return self._json("POST", "/v0.1/commands", body, headers)

    def send(self, kind: str, payload: Mapping[str, Any] | Struct, **envelope: Any) -> dict[str, Any]:
        """Sign a Command as this client's key and hand it in.

        ``envelope`` takes what ``signed_command`` takes: ``group_id``, ``membership_epoch``, ``expected_revision`` and
        so on; ``action_id`` and ``issued_at`` are made here unless given. A lost answer is asked for again with the
        very same bytes, so that nothing is done twice (R-19-04).
        """
        now = self._clock.now()
        envelope.setdefault("action_id", uuid7_urn(now, self._entropy.random(10)))
        envelope.setdefault("issued_at", now.text())
        raw = signed_command(self._signer(), kind, payload, **envelope)
        try:
            return self.command(raw)
        except Unreachable:
            return self.command(raw)

    # --- reading ---

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """The JSON document at a path such as ``/v0.1/missions``; what is ``None`` in the query is left out.

        With a key, a session is opened for it when it is first needed.
        """
        wanted = {name: value for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(wanted)}" if wanted else path
        extra = float(wanted.get("wait", 0))
        return self._authorized_json("GET", target, None, {}, extra)

    def post(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Post a JSON document as this client's Principal, for instance to ``/v0.1/tokens/capability``."""
        body = msgspec.json.encode(document)
        return self._authorized_json("POST", path, body, {"Content-Type": "application/json"})

    def mission(self, mission_id: str) -> dict[str, Any]:
        """The view of one Mission."""
        return self.get(f"/v0.1/missions/{segment(mission_id)}")

    def events(self, group_id: str, after: int = 0, limit: int = 1000, wait: int | None = None) -> dict[str, Any]:
        """Authorized history of a Group: ``{"events": [...], "headSequence": n}``; ``wait`` in whole seconds."""
        return self.get(f"/v0.1/groups/{segment(group_id)}/events", after=after, limit=limit, wait=wait)

    # --- Artifacts ---

    def put_artifact(self, source: Path | str | bytes | BinaryIO) -> dict[str, Any]:
        """Store bytes; ``{"contentHash", "sizeBytes", "uri"}``. The node is told the hash and refuses anything else."""
        if isinstance(source, bytes):
            return self._put(io.BytesIO(source))
        if isinstance(source, (Path, str)):
            with open(source, "rb") as file:
                return self._put(file)
        return self._put(source)

    def _put(self, file: BinaryIO) -> dict[str, Any]:
        start = file.tell()
        digest = hashlib.sha256()
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
        size = file.tell() - start
        encoded = encode_base64url(digest.digest()).replace("-", "+").replace("_", "/") + "="
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Length": str(size),
            "Content-Digest": f"sha-256=:{encoded}:",
        }

        def attempt(authorization: dict[str, str]) -> dict[str, Any]:
            file.seek(start)
            return self._json("PUT", "/v0.1/artifacts", file, headers | authorization)

        stored: dict[str, Any] = self._with_session(attempt)
        return stored

    def get_artifact(self, content_hash: str, path: Path | str) -> int:
        """Fetch an Artifact into a file, whole and checked against its hash, or not at all; its size in bytes."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.part")
        try:
            with open(partial, "wb") as file:
                size = 0
                for chunk in self.artifact_chunks(content_hash):
                    size += file.write(chunk)
            os.replace(partial, target)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
        return size

    def artifact_chunks(self, content_hash: str) -> Iterator[bytes]:
        """The bytes of an Artifact. ClientError after the last chunk when they are not what the hash says."""
        path = f"/v0.1/artifacts/{segment(content_hash)}"
        response = self._with_session(lambda authorization: self._exchange("GET", path, None, authorization))
        digest = hashlib.sha256()
        while chunk := self._read(response, _CHUNK_BYTES):
            digest.update(chunk)
            yield chunk
        if f"sha256:{digest.hexdigest()}" != content_hash.lower():
            raise ClientError(f"the node sent other bytes than {content_hash} names; nothing was kept")

    def artifact(self, content_hash: str, after: str | None = None, limit: int | None = None) -> dict[str, Any]:
        """Size, classification and signed manifests of an Artifact, as far as this client's Principal sees them:
        ``{"contentHash", "sizeBytes", "classification", "knowledge", "manifests": [Artifact], "next"?}``.

        GroupNotFound for one that it may not read, or that is not there.
        """
        return self.get(f"/v0.1/artifacts/{segment(content_hash)}/manifests", after=after, limit=limit)

    def provenance(
        self,
        content_hash: str,
        direction: Direction = "sources",
        *,
        depth: int = 1,
        limit: int | None = None,
        after: str | None = None,
    ) -> dict[str, Any]:
        """One answer about what an Artifact was made of, or what was made of it, ``depth`` steps far (R-13.1-19).

        ``{"contents": [...], "derivations": [...], "unfinished": [...]}``; ``unfinished`` names the places from which
        the walk goes on where the answer had no room for more than ``limit`` steps. ``walk`` goes on by itself.
        """
        path = f"/v0.1/artifacts/{segment(content_hash)}/provenance"
        return self.get(path, direction=direction, depth=depth, limit=limit, after=after)

    def walk(self, content_hash: str, direction: Direction = "sources", *, depth: int = 1) -> Provenances:
        """Each step from an Artifact to what it was made of, or to what was made of it, ``depth`` far, each once.

        Asks the node for more as the steps are taken. Its ``contents`` tell of all bytes met so far, by hash.
        """
        return Provenances(self.provenance, content_hash, direction, depth)

    # --- sessions ---

    def authenticate(self) -> str:
        """Open a session for this client's key; its bearer token (decisions A27, B5)."""
        key = self._signer()
        question = {"principal": msgspec.to_builtins(key.principal), "keyId": key.key_id}
        headers = {"Content-Type": "application/json"}
        answer = self._json("POST", "/v0.1/sessions/challenge", msgspec.json.encode(question), headers)
        challenge = str(answer.get("challenge"))
        signed = key.sign(
            session_challenge(
                challenge, principal=key.principal, key_id=key.key_id, organization_id=key.organization_id or None
            )
        )
        proof = {"challenge": challenge, "signature": encode_base64url(signed)}
        opened = self._json("POST", "/v0.1/sessions", msgspec.json.encode(proof), headers).get("token")
        if not isinstance(opened, str):
            raise ClientError(f"{self.address.http} opened a session without a token")
        self._token = opened
        return self._token

    @property
    def principal(self) -> Actor:
        """Who this client is."""
        return self._signer().principal

    def use_token(self, token: str) -> None:
        """Use a bearer token that was obtained elsewhere, for instance the ``sessionToken`` of a WebSocket."""
        self._token = token

    def _signer(self) -> SigningKey:
        if self.key is None:
            raise ClientError("this needs a key: give one by --key, or as the key argument")
        return self.key

    def _with_session(self, attempt: Any) -> Any:
        if self.key is None and self._token is None:
            return attempt({})
        with self._authenticating:
            token = self._token or self.authenticate()
        try:
            return attempt({"Authorization": f"Bearer {token}"})
        except MissionWeaveError as error:
            if error.code is not ErrorCode.AUTH_REQUIRED or self.key is None:
                raise
        # The token ran out or was fenced: once more with a fresh one.
        with self._authenticating:
            if self._token == token:
                self.authenticate()
            token = self._token or ""
        return attempt({"Authorization": f"Bearer {token}"})

    def _authorized_json(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], extra: float = 0
    ) -> dict[str, Any]:
        result: dict[str, Any] = self._with_session(
            lambda authorization: self._json(method, path, body, headers | authorization, extra)
        )
        return result

    # --- the wire ---

    def _json(
        self, method: str, path: str, body: bytes | BinaryIO | None, headers: dict[str, str], extra: float = 0
    ) -> dict[str, Any]:
        response = self._exchange(method, path, body, headers, extra)
        try:
            value = msgspec.json.decode(self._whole(path, response))
        except msgspec.DecodeError as error:
            raise ClientError(f"{self.address.http}{path} answered something that is not JSON") from error
        except RecursionError:
            raise ClientError(f"{self.address.http}{path} answered JSON that is nested too deeply") from None
        if not isinstance(value, dict):
            raise ClientError(f"{self.address.http}{path} answered JSON that is no object")
        return value

    def _exchange(
        self, method: str, path: str, body: bytes | BinaryIO | None, headers: dict[str, str], extra: float = 0
    ) -> http.client.HTTPResponse:
        """One request; the response of a success. Raises what a failure stands for."""
        # A kept connection may have been closed meanwhile: then, and only then, the request goes out a second time.
        for kept in (True, False):
            connection = self._connection(kept)
            if connection is None:
                continue
            try:
                connection.timeout = self._timeout + extra
                if connection.sock is not None:
                    connection.sock.settimeout(self._timeout + extra)
                connection.request(method, path, body, headers)
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self._forget()
                if kept and not isinstance(body, io.IOBase):
                    continue
                raise Unreachable(f"{self.address.http} closed the connection: {error}") from error
            except ssl.SSLCertVerificationError as error:
                self._forget()
                raise NotTrusted(
                    f"{self.address.http} is not trusted ({error.verify_message}): give its CA by --ca"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                raise Unreachable(f"{self.address.http} cannot be reached: {error}") from error
            if response.status < 300:
                return response
            raise self._failure(path, response)
        raise AssertionError("a fresh connection is always tried")

    def _failure(self, path: str, response: http.client.HTTPResponse) -> Exception:
        body = self._whole(path, response)
        try:
            return MissionWeaveError.of_document(msgspec.json.decode(body, type=ErrorDocument))
        except (msgspec.DecodeError, RecursionError):
            return ClientError(f"{self.address.http}{path} answered {response.status} {response.reason}")

    def _whole(self, path: str, response: http.client.HTTPResponse) -> bytes:
        """A whole JSON answer."""
        body = self._read(response, JSON_BYTES + 1)
        if len(body) > JSON_BYTES:
            self._forget()
            raise ClientError(f"{self.address.http}{path} answered more than {JSON_BYTES} bytes of JSON")
        return body

    def _read(self, response: http.client.HTTPResponse, size: int) -> bytes:
        try:
            return response.read(size)
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            raise Unreachable(f"{self.address.http} broke off its answer: {error}") from error

    def _connection(self, kept: bool) -> http.client.HTTPConnection | None:
        """This thread's connection: the kept one, if there is one, or a fresh one."""
        existing: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept:
            return existing
        self._forget()
        host, port = self.address.host, self.address.port
        fresh: http.client.HTTPConnection
        if self._tls is not None:
            fresh = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)
        else:
            fresh = http.client.HTTPConnection(host, port, timeout=self._timeout)
        self._local.connection = fresh
        self._connections.add(fresh)
        return fresh

    def _forget(self) -> None:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._connections.discard(connection)
            self._local.connection = None

    def close(self) -> None:
        """Close every thread's connection."""
        for connection in tuple(self._connections):
            connection.close()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["HttpClient", "decode_base64url", "segment"]
