"""HTTP: Missions and their derived progress, history, the policy log, what waits and why. Shell."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from mwnode.authority import views
from mwnode.authority.access import Sight, may_fetch_cited, may_fetch_package, sight_of
from mwnode.authority.state import CONTEXTS, GROUPS
from mwnode.gateway.access import Rooms, conversation_of, rooms_of, shows
from mwnode.gateway.web import NOT_FOUND, Refusal, Web, json_response, number, raw_json, refuse
from mwnode.protocol import strict_json
from mwnode.protocol.documents import Actor, Event
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.protocol.scalars import SAFE_INTEGER_MAX
from mwnode.store.batch import CommittedEvent
from mwnode.store.port import ORGANIZATION, ReadTransaction, StoredEvent

EVENTS_DEFAULT = 100
EVENTS_MAX = 1000
WAIT_MAX = 60
PAGE_BYTES = 4 * 1024 * 1024
"""About how much one page of Events may hold; a longer one is cut, and the next starts where it ended."""


LOOK_MAX = 20_000
"""Organization-scoped Events that one request looks through."""
T = TypeVar("T")


class _Page(msgspec.Struct):
    head: int
    first_visible: int
    events: list[StoredEvent]
    withheld: int
    """Sequence up to which Events were looked at."""


class History:
    """Handlers about Groups and Missions."""

    def __init__(self, web_tools: Web) -> None:
        self._web = web_tools
        self._waiters: dict[str, set[asyncio.Event]] = {}
        web_tools.hub.on_batch.append(self._wake)

    # --- Missions ---

    async def missions(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/missions``: every Group of the caller, with its Membership (decisions A1, B3)."""
        principal = self._web.bearer(request).principal
        now = self._web.authority.clock.now()
        listed = await self._web.read(lambda view: views.mission_list(view, principal, now))
        return json_response({"missions": listed})

    async def mission(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/missions/{id}``: the Mission, its WorkItems and derived progress (decisions A22, B19)."""
        principal = self._web.bearer(request).principal
        mission_id = request.match_info["mission_id"]
        policy = self._web.authority.policy
        now = self._web.authority.clock.now()
        found = await self._web.read(lambda view: views.mission_view(view, principal, mission_id, policy, now))
        if isinstance(found, Rejection):
            raise Refusal(found)
        return json_response(found)

    async def waiting(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/waiting``: who must act next, on what, since when, by when, and what happens otherwise."""
        principal = self._web.bearer(request).principal
        policy, now = self._web.authority.policy, self._web.authority.clock.now()
        found = await self._web.read(lambda view: views.waiting_for(view, principal, policy, now))
        return json_response({"waiting": found})

    async def why(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/why?on=ID``: the chain of facts that makes a WorkItem or Mission be where it is."""
        principal = self._web.bearer(request).principal
        on = request.query.get("on")
        if on is None:
            raise refuse(ErrorCode.INVALID_COMMAND, "name the WorkItem or Mission: ?on=ID")
        policy, now = self._web.authority.policy, self._web.authority.clock.now()

        def read(view: ReadTransaction) -> list[dict[str, Any]] | Rejection:
            group_id = views.group_of(view, on)
            events = [] if group_id is None else list(_events_about(view, group_id, on))
            return views.why_on(view, principal, on, events, policy, now)

        found = await self._web.read(read)
        if isinstance(found, Rejection):
            raise Refusal(found)
        return json_response({"why": found})

    # --- Events ---

    async def events(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/groups/{id}/events``: authorized history, whatever filters say (R-8-20, decisions B9 to B11)."""
        principal = self._web.bearer(request).principal
        group_id = request.match_info["group_id"]
        after = number(request, "after", 0, 0, SAFE_INTEGER_MAX)
        limit = number(request, "limit", EVENTS_DEFAULT, 1, EVENTS_MAX)
        wait = number(request, "wait", 0, 0, WAIT_MAX)
        page = await self._page(principal, group_id, after, limit)
        if wait and not page.events and page.head <= max(after, page.withheld):
            page = await self._wait(
                group_id, wait, lambda: self._page(principal, group_id, after, limit), lambda page: bool(page.events)
            )
        stated = b',"from":%d' % page.first_visible if after + 1 < page.first_visible else b""
        body = b'{"events":[%b],"headSequence":%d%b}' % (_joined(page.events), page.head, stated)
        return raw_json(body)

    async def _wait(
        self, group_id: str, seconds: int, ask: Callable[[], Awaitable[T]], enough: Callable[[T], bool]
    ) -> T:
        """Ask again whenever a log has new Events, until that is enough or the time is up (decision B11)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        news = asyncio.Event()
        waiters = self._waiters.setdefault(group_id, set())
        waiters.add(news)
        try:
            while True:
                answer = await ask()
                left = deadline - loop.time()
                if enough(answer) or left <= 0 or self._web.hub.stopping:
                    return answer
                try:
                    async with asyncio.timeout(min(left, 1.0)):
                        await news.wait()
                except TimeoutError:
                    # A stopping node answers within a second; nothing new is a good answer too.
                    continue
                news.clear()
        finally:
            waiters.discard(news)
            if not waiters:
                self._waiters.pop(group_id, None)

    def _wake(self, events: Sequence[CommittedEvent]) -> None:
        for event in events:
            for news in self._waiters.get(event.group_id if event.group_id is not None else ORGANIZATION, ()):
                news.set()

    async def _page(self, principal: Actor, group_id: str, after: int, limit: int) -> _Page:
        def read(view: ReadTransaction) -> _Page:
            sight = self._web.sight(view, group_id, principal)
            start = max(after, sight.start - 1)
            trimmed = view.trimmed(group_id)
            if trimmed is not None and start < trimmed.through:
                text = f"Events up to {trimmed.through} are no longer online; restore the snapshot instead"
                raise Refusal(
                    Rejection(ErrorCode.CURSOR_TOO_OLD, text, "R-19-33"),
                    snapshot_artifact_hash=trimmed.snapshot_artifact_hash,
                )
            return self._visible(view, group_id, sight, start, limit)

        return await self._web.read(read)

    def _visible(self, view: ReadTransaction, group_id: str, sight: Sight, start: int, limit: int) -> _Page:
        """Readable Events from a place on. Withheld ones are passed over, so that a full page is a full page."""
        rooms: Rooms = {} if sight.whole else rooms_of(view, group_id)
        found: list[StoredEvent] = []
        size, place = 0, start
        while len(found) < limit and size < PAGE_BYTES:
            chunk = view.events(group_id, place, min(128, limit - len(found)))
            if not chunk:
                break
            for event in chunk:
                place = event.sequence
                conversation = conversation_of(event.event) if rooms else None
                if shows(sight, rooms, event.sequence, conversation):
                    found.append(event)
                    size += len(event.event)
                    if size >= PAGE_BYTES:
                        break
        return _Page(view.head(group_id), sight.start, found, place)

    async def event(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/groups/{id}/events/{sequence}``: one Event, also one that a Context Package cites (R-8-16)."""
        principal = self._web.bearer(request).principal
        group_id = request.match_info["group_id"]
        sequence = _sequence(request.match_info["sequence"])

        def read(view: ReadTransaction) -> bytes:
            sight = self._web.sight(view, group_id, principal)
            stored = view.event(group_id, sequence)
            if stored is None:
                raise refuse(ErrorCode.INVALID_COMMAND, f"this Group has no Event {sequence}", "R-19-19")
            rooms = {} if sight.whole else rooms_of(view, group_id)
            conversation = conversation_of(stored.event)
            if shows(sight, rooms, sequence, conversation) or may_fetch_cited(
                view, sight, stored.event_id, conversation
            ):
                return stored.event
            raise refuse(ErrorCode.AUTH_FORBIDDEN, "this Membership does not allow reading that Event", "R-8-15")

        return raw_json(await self._web.read(read))

    async def organization_events(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/organization/events``: for the Principal concerned and for services (reading 30, B11, B12).

        ``next`` is where to go on: Events of others before it were passed over.
        """
        principal = self._web.bearer(request).principal
        after = number(request, "after", 0, 0, SAFE_INTEGER_MAX)
        limit = number(request, "limit", EVENTS_DEFAULT, 1, EVENTS_MAX)
        wait = number(request, "wait", 0, 0, WAIT_MAX)
        place = after

        def read(view: ReadTransaction) -> list[StoredEvent]:
            nonlocal place
            found: list[StoredEvent] = []
            looked_at = 0
            while len(found) < limit and looked_at < LOOK_MAX:
                chunk = view.organization_events(place, 128)
                if not chunk:
                    break
                looked_at += len(chunk)
                for event in chunk:
                    if len(found) == limit:
                        break
                    place = event.sequence
                    if principal.type == "service" or _concerns(event.event, principal):
                        found.append(event)
            return found

        def look() -> Awaitable[list[StoredEvent]]:
            return self._web.read(read)

        events = await (self._wait(ORGANIZATION, wait, look, bool) if wait else look())
        return raw_json(b'{"events":[%b],"next":%d}' % (_joined(events), place))

    # --- the rest of a Group ---

    async def policy_log(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/groups/{id}/policy-log``: for those who may inspect the Mission (R-G-10, decision B3)."""
        principal = self._web.bearer(request).principal
        group_id = request.match_info["group_id"]
        after = number(request, "after", 0, 0, SAFE_INTEGER_MAX)
        limit = number(request, "limit", EVENTS_MAX, 1, EVENTS_MAX)

        def read(view: ReadTransaction) -> object:
            if not self._web.sight(view, group_id, principal).whole:
                raise refuse(ErrorCode.AUTH_FORBIDDEN, "only who may inspect the Mission reads its policy log")
            return view.policy_log(group_id, after, limit)

        return json_response({"entries": await self._web.read(read)})

    async def snapshots(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/groups/{id}/snapshots``: once the Mission has ended, one signed snapshot: at the head and ready
        to be archived, or the one that the Group was archived under (R-7.4-02, decisions B3, F28). With ``live=1`` also
        one of a Group at work, from which a reader goes on instead of replaying everything (R-7.4-07, reading 31).

        Every reader may have to go on from the archived one; the other holds the policy log, like the page above.
        """
        principal = self._web.bearer(request).principal
        group_id = request.match_info["group_id"]
        live = number(request, "live", 0, 0, 1) == 1

        def read(view: ReadTransaction) -> bool:
            group = view.get(GROUPS, group_id)
            archived = group is not None and group.group.state == "archived"
            return self._web.sight(view, group_id, principal).whole or archived

        if not await self._web.read(read):
            raise refuse(ErrorCode.AUTH_FORBIDDEN, "only who may inspect the Mission has a snapshot made of it")
        found = await self._web.in_thread(lambda: self._web.authority.snapshots(group_id, live=live))
        return raw_json(b'{"snapshots":[%b]}' % b",".join(found))

    async def context_package(self, request: web.Request) -> web.StreamResponse:
        """``GET /v0.1/context-packages/{id}``: the signed package, for whom it is meant (decision A4, R-8-14)."""
        principal = self._web.bearer(request).principal
        package_id = request.match_info["package_id"]

        def read(view: ReadTransaction) -> object:
            row = view.get(CONTEXTS, package_id)
            if row is None:
                raise Refusal(NOT_FOUND)
            sight = sight_of(view, principal, row.package.group_id, self._web.authority.clock.now())
            if isinstance(sight, Rejection) or not may_fetch_package(view, sight, row):
                raise Refusal(NOT_FOUND)
            return row.package

        return json_response(await self._web.read(read))


class _Subject(msgspec.Struct, rename="camel"):
    agent_id: str | None = None


class _OrganizationEvent(msgspec.Struct):
    payload: _Subject


_MISSION_KIND = b'"kind":"mission.'
_ORGANIZATION_EVENT = msgspec.json.Decoder(_OrganizationEvent)


def _concerns(event: bytes, principal: Actor) -> bool:
    return principal.type == "agent" and _ORGANIZATION_EVENT.decode(event).payload.agent_id == principal.id


def _events_about(view: ReadTransaction, group_id: str, on: str) -> Iterator[Event]:
    """The Events that can be about a WorkItem or Mission; what names neither is not decoded."""
    name = on.encode()
    place = 0
    while chunk := view.events(group_id, place, 256):
        for stored in chunk:
            place = stored.sequence
            if name in stored.event or _MISSION_KIND in stored.event:
                yield strict_json.trusted(stored.event, Event)


def _joined(events: Sequence[StoredEvent]) -> bytes:
    return b",".join([event.event for event in events])


def _sequence(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 16:
        raise refuse(ErrorCode.INVALID_COMMAND, "a sequence is a positive integer", "R-19-19")
    return int(text)
