"""A client by somebody else: the normative schemas and the documented wire, and nothing of mwnode.

WebSocket by ``websockets``, HTTP by the standard library, Ed25519 by OpenSSL (``cryptography``), RFC 8785 by
``rfc8785``, schemas by ``jsonschema``. Whatever comes from the node is judged before it is believed: every frame and
every document in it against its schema, every Event's signature against the Registry, every Group's order.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import rfc8785
import websockets
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from tests.patience import PATIENCE_SECONDS

Document = dict[str, Any]
TRANSCRIPT = {"agentId", "challengeId", "clientNonce", "expiresAt", "keyId", "protocolVersion", "serverNonce"}


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def new_id() -> str:
    return f"urn:uuid:{uuid.uuid4()}"


def now(seconds: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def content_hash(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Schemas:
    """The published schemas, formats asserted."""

    def __init__(self, directory: Path) -> None:
        documents = [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]
        registry: Registry[Any] = Registry().with_resources(
            (document["$id"], Resource.from_contents(document)) for document in documents
        )
        self._validators = {
            document["$id"].rsplit("/", 1)[1].removesuffix(".schema.json"): Draft202012Validator(
                document, registry=registry, format_checker=FormatChecker()
            )
            for document in documents
        }

    def check(self, name: str, document: Any) -> None:
        """AssertionError with every fault."""
        faults = [f"{error.json_path}: {error.message}" for error in self._validators[name].iter_errors(document)]
        assert not faults, f"{name}: {faults}: {json.dumps(document)[:2000]}"


class Identity:
    """A Principal and its key. Its key pair is made here; the node gets to see the public half only."""

    def __init__(self, kind: str, name: str) -> None:
        self.principal = {"type": kind, "id": f"urn:example:{kind}:{name}"}
        self.key_id = f"urn:example:key:{name}"
        self._key = Ed25519PrivateKey.generate()

    @property
    def id(self) -> str:
        return self.principal["id"]

    @property
    def public_key(self) -> str:
        return b64(self._key.public_key().public_bytes_raw())

    def sign_bytes(self, message: bytes) -> str:
        return b64(self._key.sign(message))

    def sign(self, document: Document, at: str) -> Document:
        """The document with its signature over everything else; ``at`` is its protected time."""
        signature = {
            "algorithm": "Ed25519",
            "keyId": self.key_id,
            "createdAt": at,
            "value": self.sign_bytes(rfc8785.dumps(document)),
        }
        return {**document, "signature": signature}


class Http:
    """One Principal over HTTP."""

    def __init__(self, base: str, ca: str, who: Identity, schemas: Schemas) -> None:
        self._base = base
        self._tls = ssl.create_default_context(cafile=ca)
        self._who = who
        self._schemas = schemas
        self._token = ""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Document:
        """One request; the JSON answer. AssertionError with the error document otherwise."""
        request = urllib.request.Request(self._base + path, data=body, method=method, headers=headers)
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=PATIENCE_SECONDS) as response:
                answer: Document = json.loads(response.read())
                return answer
        except urllib.error.HTTPError as error:
            document = json.loads(error.read())
            self._schemas.check("error", document)
            raise AssertionError(f"{method} {path}: {error.code} {document}") from None

    def post(self, path: str, document: Document) -> Document:
        return self.ask("POST", path, json.dumps(document).encode(), **{"Content-Type": "application/json"})

    def open_session(self) -> None:
        who = self._who
        asked = self.post("/v0.1/sessions/challenge", {"principal": who.principal, "keyId": who.key_id})
        text = unb64(asked["challenge"])
        challenge = json.loads(text)
        assert rfc8785.dumps(challenge) == text
        assert set(challenge) == {"purpose", "principal", "keyId", "challengeId", "expiresAt", "audience"}
        assert (challenge["purpose"], challenge["principal"]) == ("mwnode-session", who.principal)
        answer = {"challenge": asked["challenge"], "signature": who.sign_bytes(text)}
        self._token = self.post("/v0.1/sessions", answer)["token"]

    def command(self, kind: str, payload: Document, **envelope: Any) -> Document:
        """Sign and post a Command; its receipt Event."""
        command = make_command(self._who, kind, payload, **envelope)
        self._schemas.check("command", command)
        events = self.post("/v0.1/commands", command)["events"]
        for event in events:
            self._schemas.check("event", event)
        receipt: Document = events[0]
        return receipt

    def store(self, content: bytes) -> Document:
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        return self.ask("PUT", "/v0.1/artifacts", content, **{"Content-Digest": f"sha-256=:{digest}:"})


def make_command(who: Identity, kind: str, payload: Document, **envelope: Any) -> Document:
    issued_at = now()
    command = {
        "protocolVersion": "0.1",
        "actionId": new_id(),
        "actor": who.principal,
        "kind": kind,
        "correlationId": new_id(),
        "issuedAt": issued_at,
        "payload": payload,
        **envelope,
    }
    return who.sign(command, issued_at)


class Keys:
    """What the Registry tells: public keys by ID, with their Principals."""

    def __init__(self, evidence: Document) -> None:
        self._bindings = {each["keyId"]: each for each in evidence["bindings"]}

    def verify(self, document: Document, *, by: str) -> None:
        """The signature of a document, and that its key is one of a Principal of that type."""
        signature = document["signature"]
        binding = self._bindings[signature["keyId"]]
        assert binding["principal"]["type"] == by
        unsigned = {name: value for name, value in document.items() if name != "signature"}
        key = Ed25519PublicKey.from_public_bytes(unb64(binding["publicKey"]))
        key.verify(unb64(signature["value"]), rfc8785.dumps(unsigned))


class Agent:
    """One Agent on a WebSocket. Everything that was delivered is kept, and was checked."""

    def __init__(self, who: Identity, socket: websockets.ClientConnection, schemas: Schemas, keys: Keys) -> None:
        self.who = who
        self._socket = socket
        self._schemas = schemas
        self._keys = keys
        self.session_epoch = 0
        self.events: dict[str, dict[int, Document]] = {}
        """By Group and sequence."""
        self.kinds: list[str] = []

    @classmethod
    async def connect(cls, url: str, ca: str, who: Identity, schemas: Schemas, keys: Keys) -> Agent:
        socket = await websockets.connect(
            url, ssl=ssl.create_default_context(cafile=ca), compression=None, open_timeout=PATIENCE_SECONDS
        )
        agent = cls(who, socket, schemas, keys)
        await agent._handshake()
        return agent

    async def close(self) -> None:
        await self._socket.close()

    async def _send(self, frame_type: str, **members: Any) -> str:
        frame_id = new_id()
        frame = {"protocolVersion": "0.1", "frameId": frame_id, "frameType": frame_type, **members}
        self._schemas.check("websocket-frame", frame)
        await self._socket.send(json.dumps(frame))
        return frame_id

    async def _receive(self) -> Document:
        text = await self._socket.recv()
        assert isinstance(text, str), "a frame is a text message"
        frame: Document = json.loads(text)
        self._schemas.check("websocket-frame", frame)
        return frame

    async def _handshake(self) -> None:
        who, nonce = self.who, b64(uuid.uuid4().bytes)
        same = {"agentId": who.id, "keyId": who.key_id, "clientNonce": nonce}
        await self._send("HELLO", phase="client_init", supportedVersions=["0.1"], **same)
        asked = await self._receive()
        assert asked["phase"] == "server_challenge", asked
        text = unb64(asked["challenge"])
        transcript = json.loads(text)
        # Signing whatever a server sends would let it have Commands signed.
        assert set(transcript) == TRANSCRIPT
        assert transcript["agentId"] == who.id
        assert transcript["keyId"] == who.key_id
        assert transcript["clientNonce"] == nonce
        assert transcript["serverNonce"] == asked["serverNonce"]
        await self._send(
            "HELLO",
            phase="client_response",
            serverNonce=asked["serverNonce"],
            challengeSignature=who.sign_bytes(text),
            **same,
        )
        accepted = await self._receive()
        assert accepted["phase"] == "server_accept", accepted
        self.session_epoch = accepted["sessionEpoch"]

    async def _next(self) -> Document:
        """The next frame; PINGs that want an answer get one, Events are checked and kept."""
        frame = await self._receive()
        if frame["frameType"] == "PING" and "replyToNonce" not in frame:
            await self._send("PING", nonce=b64(uuid.uuid4().bytes), replyToNonce=frame["nonce"], sentAt=now())
        if frame["frameType"] == "EVENT":
            self._take(frame["event"])
        return frame

    def _take(self, event: Document) -> None:
        self._schemas.check("event", event)
        self._keys.verify(event, by="service")
        known = self.events.setdefault(event["groupId"], {})
        before = known.setdefault(event["sequence"], event)
        assert before == event, "one sequence, one Event"
        if before is event:
            self.kinds.append(event["kind"])

    async def follow(self, group_id: str, after: int = 0) -> None:
        """Subscribe, and take the replay."""
        subscription_id = new_id()
        groups = [{"groupId": group_id, "afterSequence": after}]
        await self._send("SUBSCRIBE", subscriptionId=subscription_id, groups=groups)
        mark = b64(subscription_id.encode())
        while (frame := await self._next())["frameType"] != "PING" or frame["nonce"] != mark:
            assert frame["frameType"] != "ERROR", frame

    async def command(self, kind: str, payload: Document, **envelope: Any) -> Document:
        """Send a Command; its receipt Event, wherever it comes among the others."""
        command = make_command(self.who, kind, payload, sessionEpoch=self.session_epoch, **envelope)
        self._schemas.check("command", command)
        frame_id = await self._send("COMMAND", command=command)
        while True:
            frame = await self._next()
            if frame["frameType"] == "EVENT" and frame["event"]["cause"]["id"] == command["actionId"]:
                receipt: Document = frame["event"]
                return receipt
            if frame["frameType"] == "ERROR":
                error = frame["error"]
                assert error.get("relatedFrameId") == frame_id, error
                assert error.get("relatedActionId") == command["actionId"], error
                raise AssertionError(f"{kind}: {error}")

    async def until(self, kind: str) -> Document:
        """Wait for an Event of a kind; the last one of it that was delivered."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends:
            for events in self.events.values():
                for sequence in sorted(events, reverse=True):
                    if events[sequence]["kind"] == kind:
                        return events[sequence]
            await self._next()
        raise AssertionError(f"no {kind} came: {self.kinds}")

    async def acknowledge(self, group_id: str) -> int:
        """Everything up to the last Event without a gap was processed."""
        known = self.events[group_id]
        sequence = max(known)
        await self._send("ACK", acknowledgements=[{"groupId": group_id, "sequence": sequence}], sentAt=now())
        return sequence
