"""What every HTTP handler shares: errors in the protocol's words, bearer tokens, queries, JSON. Shell."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware

from mwnode.authority.access import Sight, sight_of
from mwnode.authority.state import principal_key
from mwnode.gateway.engine import BACKPRESSURE_MS
from mwnode.gateway.hub import Hub
from mwnode.gateway.listener import LISTENER, Exchange, visit_of
from mwnode.gateway.sessions import Bearer
from mwnode.protocol import strict_json
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import HTTP_STATUS, ErrorCode, MissionWeaveError, Rejection, error_document
from mwnode.protocol.strict_json import JsonFault, SchemaFault
from mwnode.seldom import Seldom
from mwnode.store.errors import StoreError
from mwnode.store.port import ReadTransaction

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
READERS = 2
"""Threads that read the store for HTTP, so that a large view does not hold up the sockets."""
PROGRESS_BYTES = 64 * 1024
"""How much of a body has to come in ``handshake_timeout`` seconds, where that is not the whole rest of it."""
REFUSALS_LOGGED = 20
"""Refusals of one kind from one address that are logged in a minute."""
LOGGED_PATH = 200
REQUESTS_IN_FLIGHT = 64
"""Unanswered requests of one Principal, over all of its connections; long polls count too."""
QUESTION_BYTES = 64 * 1024
"""Largest JSON question that is no Command."""

_COUNTED = web.RequestKey("mwnode counted as", str)

logger = logging.getLogger(__name__)


class Refusal(Exception):
    """Ends a handler with an error document."""

    def __init__(
        self,
        rejection: Rejection,
        *,
        status: int | None = None,
        related_action_id: str | None = None,
        snapshot_artifact_hash: str | None = None,
    ) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection
        self.status = status or HTTP_STATUS[rejection.code]
        self.related_action_id = related_action_id
        self.snapshot_artifact_hash = snapshot_artifact_hash


def refuse(code: ErrorCode, message: str, rule: str = "", status: int | None = None) -> Refusal:
    """A refusal to raise."""
    return Refusal(Rejection(code, message, rule), status=status)


NOT_FOUND = Rejection(ErrorCode.GROUP_NOT_FOUND, "there is nothing of that name for this caller", "R-19-15")


class Web:
    """Tools of the handlers of one server."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.authority = hub.authority
        self.seldom = Seldom(logger, hub.authority.clock.monotonic)
        self._refused = Seldom(logger, hub.authority.clock.monotonic, burst=REFUSALS_LOGGED)
        self._in_flight: Counter[str] = Counter()
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="mwnode-http")

    def close(self) -> None:
        """End the reading threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def guarded(self, handler: Handler) -> Handler:
        """The handler with every failure turned into an error document (decisions B1, B13)."""

        async def guard(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Refusal as refusal:
                return self.error(request, refusal)
            except MissionWeaveError as error:
                return self.error(request, Refusal(error.rejection))
            except web.HTTPRequestEntityTooLarge:
                return self.error(request, refuse(ErrorCode.PROTOCOL_VIOLATION, "the body is too large", status=413))
            except (web.HTTPException, ConnectionError, asyncio.CancelledError):
                raise
            except web.RequestPayloadError:
                return self.error(request, refuse(ErrorCode.PROTOCOL_VIOLATION, "the body cannot be read", "R-19-34"))
            except StoreError as error:
                self.seldom.log(logging.ERROR, "store", "%s %s: %s", request.method, request.path, error)
                return self.error(request, refuse(ErrorCode.INTERNAL_ERROR, "the store cannot answer now", "R-19-35"))
            except Exception:
                logger.exception("%s %s failed", request.method, request.path)
                return self.error(request, refuse(ErrorCode.INTERNAL_ERROR, "the node failed; try again", "R-19-35"))
            finally:
                self._leave(request)

        return guard

    def error(self, request: web.Request, refusal: Refusal) -> web.Response:
        """The error document of a refusal. Who is refused for who they are is logged, in the words of the wire."""
        document = error_document(
            refusal.rejection,
            self.authority.clock.now().text(),
            related_action_id=refusal.related_action_id,
            snapshot_artifact_hash=refusal.snapshot_artifact_hash,
        )
        if refusal.status in (401, 403):
            self._refused.log(
                logging.INFO,
                f"{request.remote} {document.code}",
                "refused %s %s from %s: %s: %s",
                request.method,
                request.rel_url.raw_path[:LOGGED_PATH],
                request.remote,
                document.code,
                document.message,
            )
        headers = {}
        if refusal.rejection.retry_after_ms is not None:
            headers["Retry-After"] = str(-(-refusal.rejection.retry_after_ms // 1000))
        if refusal.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        response = json_response(document, refusal.status)
        response.headers.update(headers)
        if request.can_read_body and not request.content.at_eof():
            # What is left of the body is not read: the connection cannot be used for another request.
            response.force_close()
        return response

    def bearer(self, request: web.Request) -> Bearer:
        """Who asks; a refusal without a valid token (decision B8)."""
        found = self.hub.sessions.bearer(request.headers.get("Authorization"))
        if isinstance(found, Rejection):
            raise Refusal(found)
        self.know(request, found.principal)
        self._enter(request, principal_key(found.principal))
        return found

    def know(self, request: web.Request, principal: Actor) -> None:
        """The peer has authenticated: its connection is none of the unknown ones any more."""
        visit = visit_of(request)
        if visit is not None:
            request.app[LISTENER].doors.know(visit, principal_key(principal), asyncio.get_running_loop().time())

    def spent(self, request: web.Request, seconds: float) -> None:
        """The peer has cost so much; less than nothing was of use."""
        if isinstance(request.protocol, Exchange):
            request.protocol.spent(seconds)

    def _enter(self, request: web.Request, name: str) -> None:
        """Count a request of a Principal; a refusal when too many of its others are not answered yet (R-17.3-01)."""
        if request.get(_COUNTED) is not None:
            return
        if self._in_flight[name] >= REQUESTS_IN_FLIGHT:
            text = f"{REQUESTS_IN_FLIGHT} requests of this Principal are unanswered: wait for one of them first"
            raise Refusal(
                Rejection(ErrorCode.BACKPRESSURE, text, "R-19-32", retry_after_ms=BACKPRESSURE_MS),
            )
        self._in_flight[name] += 1
        request[_COUNTED] = name

    def _leave(self, request: web.Request) -> None:
        name = request.get(_COUNTED)
        if name is not None:
            self._in_flight[name] -= 1
            if not self._in_flight[name]:
                del self._in_flight[name]

    def bearer_if_any(self, request: web.Request) -> Bearer | None:
        """Who asks, where that is known."""
        found = self.hub.sessions.bearer(request.headers.get("Authorization"))
        return found if isinstance(found, Bearer) else None

    async def read(self, question: Callable[[ReadTransaction], T]) -> T:
        """Ask the store on a reading thread."""

        def ask() -> T:
            with self.authority.read() as view:
                return question(view)

        return await asyncio.get_running_loop().run_in_executor(self._readers, ask)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something slow off the loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    async def pieces(self, request: web.Request, limit: int, too_large: str) -> AsyncIterator[bytes]:
        """The body as it comes: its bytes as they are, at most ``limit`` of them, and none too slowly (R-17.3-01).

        What is waited for counts, not what we do with it meanwhile.
        """
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            text = "send the bytes themselves, without Content-Encoding"
            raise refuse(ErrorCode.PROTOCOL_VIOLATION, text, "R-19-34", status=400)
        if request.content_length is not None and request.content_length > limit:
            raise refuse(ErrorCode.PROTOCOL_VIOLATION, too_large, status=413)
        now = asyncio.get_running_loop().time
        patience = self.authority.limits.handshake_timeout
        content, size, came, left = request.content, 0, 0, patience
        while True:
            since = now()
            try:
                async with asyncio.timeout(left):
                    data = await content.readany()
            except TimeoutError:
                text = f"the body comes too slowly: less than {PROGRESS_BYTES} bytes in {patience:g} seconds"
                raise refuse(ErrorCode.PROTOCOL_VIOLATION, text, "R-17.3-01", status=408) from None
            if not data and content.at_eof():
                return
            size, came, left = size + len(data), came + len(data), left - (now() - since)
            if size > limit:
                raise refuse(ErrorCode.PROTOCOL_VIOLATION, too_large, status=413)
            if came >= PROGRESS_BYTES:
                came, left = 0, patience
            yield data

    async def body(self, request: web.Request, limit: int, too_large: str) -> bytes:
        """A whole body that is small enough to keep."""
        return b"".join([piece async for piece in self.pieces(request, limit, too_large)])

    async def sent(self, request: web.Request, writing: Awaitable[None]) -> None:
        """Write some of an answer; a peer that takes nothing of it for too long is cut off (R-17.3-01)."""
        try:
            async with asyncio.timeout(self.authority.limits.send_timeout):
                await writing
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the peer does not take its answer") from None

    def malformed(self, status: int, text: str) -> web.Response:
        """The answer to what is no HTTP request at all."""
        refusal = Rejection(ErrorCode.PROTOCOL_VIOLATION, text or "this is no HTTP request", "R-19-34")
        return json_response(error_document(refusal, self.authority.clock.now().text()), status)

    async def question(self, request: web.Request, kind: type[T]) -> T:
        """The typed JSON body of a request that is no Command."""
        raw = await self.body(request, QUESTION_BYTES, "the body is too large")
        try:
            return strict_json.decode(raw, kind)
        except JsonFault as fault:
            raise refuse(ErrorCode.PROTOCOL_VIOLATION, str(fault), "R-19-34") from fault
        except SchemaFault as fault:
            raise Refusal(
                Rejection(ErrorCode.SCHEMA_VALIDATION_FAILED, str(fault), "R-19-18", {"path": fault.path})
            ) from fault

    def sight(self, view: ReadTransaction, group_id: str, principal: Actor) -> Sight:
        """What the caller sees of a Group; a refusal otherwise."""
        sight = sight_of(view, principal, group_id, self.authority.clock.now())
        if isinstance(sight, Rejection):
            raise Refusal(sight)
        return sight


_NO_PATH = Rejection(ErrorCode.GROUP_NOT_FOUND, "this node has nothing at that path", "R-19-15")


def answers_of(tools: Web) -> Middleware:
    """What the server itself refuses, before any handler of ours, in the protocol's words too."""

    @web.middleware
    async def answers(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPMethodNotAllowed as refused:
            allowed = ", ".join(sorted(refused.allowed_methods))
            text = f"{request.method} is not possible there, only {allowed}"
            response = tools.error(request, refuse(ErrorCode.PROTOCOL_VIOLATION, text, "R-19-34", status=405))
            response.headers["Allow"] = allowed
            return response
        except web.HTTPNotFound:
            return tools.error(request, Refusal(_NO_PATH))
        except web.HTTPException as refused:
            if refused.status < 400 or isinstance(refused, web.HTTPServerError):
                raise
            text = refused.text or refused.reason
            return tools.error(request, refuse(ErrorCode.PROTOCOL_VIOLATION, text, "R-19-34", status=refused.status))

    return answers


def json_response(value: Any, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def raw_json(body: bytes, status: int = 200) -> web.Response:
    """A JSON answer from its bytes."""
    return web.Response(body=body, status=status, content_type="application/json")


def number(request: web.Request, name: str, default: int, lowest: int, highest: int) -> int:
    """An integer of the query; 400 outside its range (decision B9)."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        if not text.isascii() or not text.isdigit() or len(text) > 16:
            raise ValueError
        value = int(text)
        if not lowest <= value <= highest:
            raise ValueError
    except ValueError:
        raise refuse(
            ErrorCode.INVALID_COMMAND, f"{name} must be an integer from {lowest} to {highest}", "R-19-19"
        ) from None
    return value
