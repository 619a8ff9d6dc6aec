"""HTTP: Artifacts in and out, streaming, in ranges, verified while they are sent. Shell."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

import msgspec
from aiohttp import web

from mwnode.authority import provenance
from mwnode.authority.access import Sight, may_read_artifact, may_read_input, sight_of
from mwnode.authority.state import principal_key
from mwnode.gateway.web import NOT_FOUND, Refusal, Web, json_response, number, refuse
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.identifiers import artifact_uri
from mwnode.protocol.instants import Instant
from mwnode.store.artifacts import uploaders_name
from mwnode.store.port import ReadTransaction, WriteTransaction

PIECE_BYTES = 1024 * 1024
"""How much of an upload is handed to the store at once."""
UPLOADERS_MAX = 64
"""Uploaders remembered for one content before it is published; sharing bytes before that is rare."""
UPLOADS_LISTED_MAX = 1000
"""The most recent uploads of a Principal that are listed."""
_HASH = re.compile(r"(?:sha256:)?([0-9a-f]{64})\Z")
_DIGEST = re.compile(r"\s*sha-256=:([A-Za-z0-9+/]{43}=):\s*\Z")
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})\Z")


class ArtifactPages:
    """Handlers about Artifacts."""

    def __init__(self, web_tools: Web) -> None:
        self._web = web_tools

    async def put(self, request: web.Request) -> web.StreamResponse:
        """``PUT /v0.1/artifacts``: 201 for new bytes, 200 for known ones (decision B14)."""
        principal = self._web.bearer(request).principal
        expected = _expected_hash(request.headers.get("Content-Digest"))
        limit = self._web.authority.limits.artifact_bytes
        body = self._web.pieces(request, limit, f"an Artifact has at most {limit} bytes")
        writer = self._web.authority.artifacts.begin_put()
        try:
            piece = bytearray()
            async for data in body:
                piece += data
                if len(piece) >= PIECE_BYTES:
                    whole, piece = bytes(piece), bytearray()
                    await self._web.in_thread(lambda whole=whole: writer.write(whole))  # type: ignore[misc]  # mypy does not type the default
            await self._web.in_thread(lambda: writer.write(bytes(piece)))
            info = await self._web.in_thread(lambda: writer.finish(expected))
        except BaseException:
            # Half an upload leaves nothing behind, however it ended.
            writer.abort()
            raise
        await self._remember_uploader(info.content_hash, principal)
        answer = {
            "contentHash": info.content_hash,
            "sizeBytes": info.size,
            "uri": artifact_uri(info.content_hash),
        }
        return json_response(answer, 201 if info.new else 200)

    async def _remember_uploader(self, content_hash: str, principal: Actor) -> None:
        """Until it is published, an Artifact is read by whoever put it there (decision B16)."""
        name, who = uploaders_name(content_hash), principal_key(principal)

        def note(txn: WriteTransaction) -> None:
            known = _uploaders(txn, content_hash)
            if who not in known:
                txn.put_meta(name, msgspec.json.encode([*known, who][-UPLOADERS_MAX:]))

        await self._web.in_thread(self._web.authority.call(note).result)

    async def uploads(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/uploads``: what the caller put and no Group has published, newest first, and until when it stays
        unless something names it."""
        principal, authority = principal_key(self._web.bearer(request).principal), self._web.authority
        found = await self._web.in_thread(lambda: authority.artifacts.uploads_of(principal, UPLOADS_LISTED_MAX))
        retention = authority.policy.upload_retention
        rows = [
            {
                "contentHash": info.content_hash,
                "sizeBytes": info.size,
                "storedAt": info.stored_at.text(),
                "removedAfter": info.stored_at.plus(retention).text() if retention else None,
            }
            for info in found
        ]
        return json_response({"uploads": rows})

    async def get(self, request: web.Request) -> web.StreamResponse:
        """``GET|HEAD /v0.1/artifacts/{hash}``, also a range of it; each piece is checked before it is sent."""
        principal = self._web.bearer(request).principal
        content_hash = _named(request)
        document = await self._web.read(lambda view: self._readable(view, content_hash, principal))
        if document is not None:
            size = len(document)
        else:
            info = await self._web.in_thread(lambda: self._web.authority.artifacts.info(content_hash))
            if info is None:
                raise Refusal(NOT_FOUND)
            size = info.size
        etag = f'"{content_hash}"'
        headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, immutable, max-age=31536000"}
        if request.headers.get("If-None-Match") in {etag, "*"}:
            return web.Response(status=304, headers=headers)
        start, stop = 0, size
        status = 200
        wanted = request.headers.get("Range")
        if wanted is not None and request.headers.get("If-Range", etag) == etag:
            found = _range(wanted, size)
            if found is None:
                return web.Response(status=416, headers={**headers, "Content-Range": f"bytes */{size}"})
            if found != (0, size) or size == 0:
                start, stop = found
                status = 206
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        response = web.StreamResponse(status=status, headers=headers)
        response.content_type = "application/octet-stream"
        response.content_length = stop - start
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        pieces: Iterator[bytes] = (
            iter([document[start:stop]])
            if document is not None
            else self._web.authority.artifacts.read(content_hash, start, stop)
        )
        while True:
            # StoreCorrupt leaves here with the body cut short: the receiver sees that bytes are missing.
            piece = await self._web.in_thread(lambda: next(pieces, None))
            if piece is None:
                break
            await self._web.sent(request, response.write(piece))
        await response.write_eof()
        return response

    async def manifests(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/artifacts/{hash}/manifests``: size, classification and signed manifests of an Artifact."""
        principal = self._web.bearer(request).principal
        content_hash = _named(request)
        limit = number(request, "limit", provenance.MANIFESTS_MAX, 1, provenance.MANIFESTS_MAX)
        after = request.query.get("after")

        def read(view: ReadTransaction) -> provenance.Manifests | Rejection:
            self._readable(view, content_hash, principal)
            now = self._web.authority.clock.now()
            return provenance.manifests(view, principal, content_hash, now, limit=limit, after=after)

        return _answer(await self._web.read(read))

    async def provenance(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/artifacts/{hash}/provenance``: what it was made of, or what was made of it (R-13.1-19)."""
        principal = self._web.bearer(request).principal
        content_hash = _named(request)
        direction = provenance.DIRECTIONS.get(request.query.get("direction", "sources"))
        if direction is None:
            raise refuse(ErrorCode.INVALID_COMMAND, "direction is sources or derived", "R-19-19")
        depth = number(request, "depth", 1, 1, provenance.DEPTH_MAX)
        limit = number(request, "limit", provenance.DERIVATIONS_DEFAULT, 1, provenance.DERIVATIONS_MAX)
        after = request.query.get("after")

        def read(view: ReadTransaction) -> provenance.Provenance | Rejection:
            self._readable(view, content_hash, principal)
            now = self._web.authority.clock.now()
            return provenance.provenance(
                view, principal, content_hash, now, direction=direction, depth=depth, limit=limit, after=after
            )

        return _answer(await self._web.read(read))

    def _readable(self, view: ReadTransaction, content_hash: str, principal: Actor) -> bytes | None:
        """The bytes of a small document, ``None`` for an Artifact that the caller may read; a refusal otherwise.

        Absent and forbidden look alike (decision B16).
        """
        now = self._web.authority.clock.now()
        if may_read_artifact(view, principal, content_hash, now):
            return None
        if principal_key(principal) in _uploaders(view, content_hash):
            return None
        document = view.document(content_hash)
        if document is not None and _shows_document(view, principal, document, now):
            return document
        if may_read_input(view, principal, content_hash, now):
            return None
        raise Refusal(NOT_FOUND)


class _Group(msgspec.Struct, rename="camel"):
    group_id: str | None = None


class _Document(msgspec.Struct, rename="camel"):
    group_id: str | None = None
    group: _Group | None = None


def _shows_document(view: ReadTransaction, principal: Actor, document: bytes, now: Instant) -> bool:
    """Whether a stored snapshot or state body is for the caller (decision G10).

    A snapshot names its Group, and every reader of the Group may have to go on from it (R-16-61). A state body holds
    the Group's whole state, so it is for those who see all of it.
    """
    try:
        found = msgspec.json.decode(document, type=_Document)
    except msgspec.DecodeError:
        return False
    is_body = found.group is not None
    group_id = found.group.group_id if found.group is not None else found.group_id
    if group_id is None:
        return False
    sight = sight_of(view, principal, group_id, now)
    return isinstance(sight, Sight) and (sight.whole or not is_body)


def _named(request: web.Request) -> str:
    """The content hash in the path; not found for what is none."""
    match = _HASH.match(request.match_info["content_hash"].lower())
    if match is None:
        raise Refusal(NOT_FOUND)
    return f"sha256:{match[1]}"


def _answer(found: msgspec.Struct | Rejection) -> web.Response:
    if isinstance(found, Rejection):
        raise Refusal(found)
    return json_response(found)


def _uploaders(view: ReadTransaction, content_hash: str) -> list[str]:
    value = view.meta(uploaders_name(content_hash))
    return [] if value is None else msgspec.json.decode(value, type=list[str])


def _expected_hash(digest: str | None) -> str | None:
    """The hash in a ``Content-Digest`` header (RFC 9530); other algorithms than sha-256 are passed over."""
    if digest is None:
        return None
    for each in digest.split(","):
        match = _DIGEST.match(each)
        if match is not None:
            try:
                return f"sha256:{base64.b64decode(match[1], validate=True).hex()}"
            except binascii.Error:
                break
        if each.strip().startswith("sha-256="):
            break
    else:
        return None
    raise refuse(ErrorCode.INVALID_COMMAND, "Content-Digest is not of the form sha-256=:BASE64:", "R-13.1-02")


def _range(wanted: str, size: int) -> tuple[int, int] | None:
    """Start and stop of a single byte range; the whole when the header asks for something else (RFC 9110, 14.2)."""
    match = _RANGE.match(wanted.replace(" ", ""))
    if match is None or (not match[1] and not match[2]):
        return 0, size
    if not match[1]:
        count = int(match[2])
        return (max(0, size - count), size) if count and size else None
    start = int(match[1])
    stop = min(size, int(match[2]) + 1) if match[2] else size
    if match[2] and int(match[2]) < start:
        return 0, size
    return (start, stop) if start < size else None
