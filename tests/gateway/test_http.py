"""The HTTP surface over a real socket (design section 4, decisions part B)."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest

from mwnode.client.http import segment
from mwnode.gateway.metrics import kind_of
from mwnode.gateway.sessions import CHALLENGES_MAX
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import HTTP_STATUS, ErrorCode
from mwnode.testing import Participant, flip_base64url
from tests.gateway.conftest import Served, Start
from tests.gateway.wire import b64, unb64
from tests.patience import PATIENCE_SECONDS


class Web:
    """Raw HTTP against the served node."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self.served = served
        self.session = session

    async def call(
        self, method: str, path: str, body: Any = None, token: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, decoded JSON body (or bytes) and headers."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        data = io.BytesIO(data) if isinstance(data, bytes) and len(data) > 65_536 else data
        async with self.session.request(method, self.served.server.http + path, data=data, headers=sent) as response:
            raw = await response.read()
            if response.content_type == "application/json" and raw:
                return response.status, json.loads(raw), response.headers
            return response.status, raw, response.headers

    async def token(self, who: Participant) -> str:
        """A session for a Principal."""
        status, challenge, _ = await self.call("POST", "/v0.1/sessions/challenge", self.question(who))
        assert status == 200
        signature = who.key.sign(unb64(challenge["challenge"]))
        status, answer, _ = await self.call(
            "POST", "/v0.1/sessions", {"challenge": challenge["challenge"], "signature": b64(signature)}
        )
        assert status == 200, answer
        return str(answer["token"])

    @staticmethod
    def question(who: Participant) -> dict[str, Any]:
        return {"principal": {"type": who.principal.type, "id": who.id}, "keyId": who.key.key_id}


@pytest.fixture
async def web(served: Served) -> AsyncIterator[Web]:
    async with aiohttp.ClientSession() as session:
        yield Web(served, session)


def message(served: Served, group_id: str, text: str = "ready") -> dict[str, Any]:
    return {"messageId": served.harness.new_id(), "conversationId": f"{group_id}:mission", "content": text}


# --- Commands ---


@pytest.mark.req("R-15.1-01")
async def test_a_command_needs_no_session_and_is_answered_by_its_events(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    raw = served.harness.owner.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    status, answer, headers = await web.call("POST", "/v0.1/commands", raw)
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert answer["events"] == [mission.events()[-1]]
    assert (await web.call("POST", "/v0.1/commands", raw))[1] == answer
    assert len(mission.events()) == 2


async def test_a_retry_over_http_gets_the_answer_of_the_websocket(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    coordinator = served.harness.coordinator
    wire = await served.agent(coordinator)
    raw = coordinator.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await wire.command(raw)
    event = await wire.event()
    assert (await web.call("POST", "/v0.1/commands", raw))[1] == {"events": [event]}


@pytest.mark.req("R-6.4-81")
async def test_an_old_receipt_is_for_its_own_bearer_only(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    owner = served.harness.owner
    raw = owner.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    first = (await web.call("POST", "/v0.1/commands", raw))[1]
    served.harness.clock.advance(400)
    assert (await web.call("POST", "/v0.1/commands", raw))[1]["code"] == "AUTH_INVALID_SIGNATURE"
    stranger = await web.token(served.harness.coordinator)
    assert (await web.call("POST", "/v0.1/commands", raw, stranger))[0] == 401
    assert (await web.call("POST", "/v0.1/commands", raw, await web.token(owner)))[1] == first


async def test_a_refusal_is_a_bare_error_document(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    raw = worker.command(
        "work.authorize",
        {"workItemId": served.harness.new_id(), "contract": served.harness.contract()},
        group_id=mission.group_id,
    )
    status, error, _ = await web.call("POST", "/v0.1/commands", raw)
    assert status == 403
    assert error["code"] == "AUTH_FORBIDDEN"
    assert error["relatedActionId"] == json.loads(raw)["actionId"]
    assert set(error) <= {"code", "message", "retryable", "occurredAt", "relatedActionId", "details"}


@pytest.mark.parametrize(
    "body, status, code",
    [
        (b"", 400, "PROTOCOL_VIOLATION"),
        (b"{", 400, "PROTOCOL_VIOLATION"),
        (b'{"a":1,"a":1}', 400, "PROTOCOL_VIOLATION"),
        (b"{}", 400, "SCHEMA_VALIDATION_FAILED"),
        (b"x" * 1_100_000, 413, "PROTOCOL_VIOLATION"),
    ],
    ids=["empty", "truncated", "duplicate", "schema", "too large"],
)
async def test_malformed_commands(web: Web, body: bytes, status: int, code: str) -> None:
    found, error, _ = await web.call("POST", "/v0.1/commands", body)
    assert (found, error["code"]) == (status, code)


async def test_an_endless_body_is_cut_off(web: Web) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65_536

    status, error, _ = await web.call("POST", "/v0.1/commands", body())
    assert (status, error["code"]) == (413, "PROTOCOL_VIOLATION")


def test_every_code_has_its_status() -> None:
    assert set(HTTP_STATUS) == set(ErrorCode)


# --- sessions ---


async def test_humans_services_and_agents_open_sessions(served: Served, web: Web) -> None:
    for who in (served.harness.owner, served.harness.organization, served.harness.workers[0]):
        token = await web.token(who)
        assert (await web.call("GET", "/v0.1/registry", token=token))[0] == 200
    assert served.harness.session_epoch(served.harness.workers[0]) == 1


async def test_an_unknown_principal_is_asked_too_and_fails_like_a_wrong_key(served: Served, web: Web) -> None:
    owner = served.harness.owner
    answers = []
    for question in (
        web.question(owner),
        web.question(owner) | {"keyId": "urn:example:unknown"},
        web.question(owner) | {"principal": {"type": "human", "id": "urn:example:unknown"}},
        web.question(owner) | {"principal": {"type": "agent", "id": owner.id}},
    ):
        status, challenge, _ = await web.call("POST", "/v0.1/sessions/challenge", question)
        assert status == 200
        signature = b64(owner.key.sign(unb64(challenge["challenge"])))
        if question == web.question(owner):
            signature = flip_base64url(signature)
        answers.append(
            await web.call("POST", "/v0.1/sessions", {"challenge": challenge["challenge"], "signature": signature})
        )
    documents = [{key: value for key, value in answer[1].items() if key != "occurredAt"} for answer in answers]
    assert documents == [documents[0]] * 4
    assert documents[0]["code"] == "AUTH_INVALID_SIGNATURE"
    assert {answer[0] for answer in answers} == {401}


async def test_a_challenge_is_used_once_and_not_for_long(served: Served, web: Web) -> None:
    owner = served.harness.owner

    async def attempt(challenge: str) -> int:
        signature = b64(owner.key.sign(unb64(challenge)))
        return (await web.call("POST", "/v0.1/sessions", {"challenge": challenge, "signature": signature}))[0]

    async def ask() -> str:
        return str((await web.call("POST", "/v0.1/sessions/challenge", web.question(owner)))[1]["challenge"])

    once = await ask()
    assert await attempt(once) == 200
    assert await attempt(once) == 401
    spoilt = await ask()
    await web.call("POST", "/v0.1/sessions", {"challenge": spoilt, "signature": b64(bytes(64))})
    assert await attempt(spoilt) == 401
    late = await ask()
    served.harness.clock.advance(30)
    assert await attempt(late) == 401
    document = json.loads(unb64(once))
    assert set(document) == {"purpose", "principal", "keyId", "challengeId", "expiresAt", "audience"}
    assert document["purpose"] == "mwnode-session"
    assert document["audience"] == served.harness.node.organization_id


async def test_abandoned_challenges_cost_nothing(served: Served) -> None:
    sessions = served.hub.sessions
    for number in range(CHALLENGES_MAX + 100):
        sessions.challenge(Actor(type="human", id=f"urn:example:{number}"), "urn:example:key")
    assert len(sessions._challenges) == CHALLENGES_MAX


PROTECTED = [
    ("GET", "/v0.1/missions"),
    ("GET", "/v0.1/missions/urn%3Ax%3A1"),
    ("GET", "/v0.1/waiting"),
    ("GET", "/v0.1/why?on=urn:x:1"),
    ("GET", "/v0.1/groups/urn%3Ax%3A1/events"),
    ("GET", "/v0.1/groups/urn%3Ax%3A1/events/1"),
    ("GET", "/v0.1/groups/urn%3Ax%3A1/policy-log"),
    ("GET", "/v0.1/organization/events"),
    ("GET", "/v0.1/context-packages/urn%3Ax%3A1"),
    ("GET", "/v0.1/artifacts/" + "0" * 64),
    ("PUT", "/v0.1/artifacts"),
    ("GET", "/v0.1/registry"),
    ("GET", "/v0.1/agents"),
    ("GET", "/v0.1/agents/urn%3Ax%3A1"),
    ("GET", "/v0.1/agents/urn%3Ax%3A1/performance"),
    ("GET", "/v0.1/presence"),
    ("GET", "/v0.1/cursors"),
    ("GET", "/v0.1/artifacts/" + "0" * 64 + "/manifests"),
    ("GET", "/v0.1/artifacts/" + "0" * 64 + "/provenance"),
]


@pytest.mark.req("R-19-10")
@pytest.mark.parametrize("method, path", PROTECTED)
async def test_reading_needs_a_valid_bearer(served: Served, web: Web, method: str, path: str) -> None:
    good = await web.token(served.harness.owner)
    head, _, tail = good.partition(".")
    foreign = f"{b64(unb64(head).replace(b'urn:mwnode:human:owner', b'urn:mwnode:human:other'))}.{tail}"
    for token in (None, "", "x", "x.y", f"{head}.{flip_base64url(tail)}", foreign):
        status, error, headers = await web.call(method, path, token=token)
        assert (status, error["code"]) == (401, "AUTH_REQUIRED"), token
        assert headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.req("R-6.3-08")
async def test_no_shared_key_is_a_credential(served: Served, web: Web) -> None:
    """Whatever of HOME somebody sends: only a bearer from a signed challenge opens a door, and for minutes only."""
    owner = served.harness.owner
    good = await web.token(owner)
    assert (await web.call("GET", "/v0.1/registry", token=good))[0] == 200
    home = served.harness.node.home
    kept = [path for path in home.path.rglob("*") if path.suffix in (".key", ".pem", ".toml")]
    assert len(kept) >= 5
    said = {word for path in kept for word in path.read_text(errors="replace").split() if len(word) >= 16}
    said |= {owner.key.public_key, owner.key.key_id, owner.id, home.organization_id, good[: good.index(".")]}
    for word in said:
        word = word.strip('",')
        for headers in (
            {"Authorization": f"Bearer {word}"},
            {"Authorization": f"Basic {word}"},
            {"Authorization": word},
            {"X_API_Key": word},
            {"Cookie": f"session={word}"},
        ):
            assert (await web.call("GET", "/v0.1/registry", **headers))[0] == 401, headers
        query = f"/v0.1/registry?token={quote(word)}&api_key={quote(word)}"
        assert (await web.call("GET", query))[0] == 401, query
    settings = (home.path / "mwnode.toml").read_text()
    assert not any(word in settings for word in ("secret", "password", "api_key")), "no setting is a credential"


async def test_a_token_ends_with_its_time_its_key_and_its_session(served: Served, web: Web) -> None:
    owner, worker = served.harness.owner, served.harness.workers[0]
    aged = await web.token(owner)
    served.harness.clock.advance(900)
    assert (await web.call("GET", "/v0.1/registry", token=aged))[0] == 401
    wire = await served.agent(worker)
    assert (await web.call("GET", "/v0.1/registry", token=wire.token))[0] == 200
    worker.connect()
    assert (await web.call("GET", "/v0.1/registry", token=wire.token))[0] == 401
    kept = await web.token(worker)
    assert (await web.call("GET", "/v0.1/registry", token=kept))[0] == 200
    served.harness.organization.send(
        f"{CORE}.key_restrict",
        {"keyId": worker.key.key_id, "revokedAt": served.harness.clock.now().text()},
    )
    assert (await web.call("GET", "/v0.1/registry", token=kept))[0] == 401


async def test_a_token_survives_a_restart_of_the_node(served: Served, web: Web) -> None:
    token = await web.token(served.harness.owner)
    served.harness.restart()
    assert served.harness.node.tokens.claims(token) is not None


# --- history ---


@pytest.mark.req("R-8-20", "R-16-06")
async def test_history_in_pages(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    for _ in range(14):
        served.harness.owner.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    token = await web.token(served.harness.owner)
    path = f"/v0.1/groups/{segment(mission.group_id)}/events"
    status, page, _ = await web.call("GET", f"{path}?after=3&limit=5", token=token)
    assert status == 200
    assert [event["sequence"] for event in page["events"]] == [4, 5, 6, 7, 8]
    assert page["headSequence"] == 15
    assert page["events"] == mission.events()[3:8]
    assert len((await web.call("GET", path, token=token))[1]["events"]) == 15
    assert (await web.call("GET", f"{path}?after=15", token=token))[1] == {"events": [], "headSequence": 15}
    assert (await web.call("GET", f"{path}?after=99", token=token))[1]["events"] == []


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=0", "limit=1001", "limit=", "wait=99999", "after=1.5"])
async def test_queries_out_of_range(served: Served, web: Web, query: str) -> None:
    mission = served.harness.mission()
    token = await web.token(served.harness.owner)
    path = f"/v0.1/groups/{segment(mission.group_id)}/events?{query}"
    status, error, _ = await web.call("GET", path, token=token)
    assert (status, error["code"]) == (400, "INVALID_COMMAND")


@pytest.mark.req("R-17.2-03", "R-19-15")
async def test_foreign_and_invented_look_alike(served: Served, web: Web) -> None:
    foreign = served.harness.mission()
    token = await web.token(served.harness.workers[0])
    for real, invented in (
        (f"/v0.1/groups/{segment(foreign.group_id)}/events", "/v0.1/groups/urn%3Ax%3A1/events"),
        (f"/v0.1/groups/{segment(foreign.group_id)}/events/1", "/v0.1/groups/urn%3Ax%3A1/events/1"),
        (f"/v0.1/groups/{segment(foreign.group_id)}/policy-log", "/v0.1/groups/urn%3Ax%3A1/policy-log"),
        (f"/v0.1/missions/{segment(foreign.mission_id)}", "/v0.1/missions/urn%3Ax%3A1"),
        (f"/v0.1/why?on={foreign.mission_id}", "/v0.1/why?on=urn:x:1"),
    ):
        status, error, _ = await web.call("GET", real, token=token)
        assert (status, error["code"]) == (404, "GROUP_NOT_FOUND")
        assert (await web.call("GET", invented, token=token))[1] == error


@pytest.mark.req("R-8-15", "R-8-16", "R-19-16")
async def test_a_late_joiner_reads_from_its_start_and_what_is_cited_to_it(served: Served, web: Web) -> None:
    harness = served.harness
    mission = harness.mission()
    worker = harness.workers[0]
    for _ in range(3):
        harness.owner.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    cited = mission.events()[1]
    package = harness.coordinator.sign(
        contextPackageId=harness.new_id(),
        version=1,
        missionId=mission.mission_id,
        groupId=mission.group_id,
        sourceEventRange={"fromSequence": 1, "toSequence": 4, "eventIds": [e["eventId"] for e in mission.events()]},
        artifactHashes=[],
        summary="the story so far",
        decisions=[{"description": "it was said", "sourceEventIds": [cited["eventId"]]}],
        constraints=[],
        unresolvedQuestions=[],
        generatedBy={"type": "agent", "id": harness.coordinator.id},
        generatedAt=harness.clock.now().text(),
    )
    mission.add(worker, contextPackage=package)
    token = await web.token(worker)
    path = f"/v0.1/groups/{segment(mission.group_id)}/events"
    status, page, _ = await web.call("GET", path, token=token)
    assert status == 200
    assert page["from"] == 5
    assert [event["sequence"] for event in page["events"]] == [5]
    assert "from" not in (await web.call("GET", f"{path}?after=4", token=token))[1]
    assert (await web.call("GET", f"{path}/2", token=token))[1] == cited
    status, error, _ = await web.call("GET", f"{path}/3", token=token)
    assert (status, error["code"]) == (403, "AUTH_FORBIDDEN")
    assert (await web.call("GET", f"{path}/99", token=token))[0] == 400
    package_path = f"/v0.1/context-packages/{segment(package['contextPackageId'])}"
    assert (await web.call("GET", package_path, token=token))[1] == package
    assert (await web.call("GET", package_path, token=await web.token(harness.workers[1])))[0] == 404
    harness.coordinator.send(
        "membership.end", {"principal": {"type": "agent", "id": worker.id}}, group_id=mission.group_id
    )
    status, error, _ = await web.call("GET", path, token=token)
    assert (status, error["code"]) == (403, "MEMBERSHIP_REQUIRED")


@pytest.mark.req("R-8-16")
async def test_a_package_without_decisions_cites_what_it_was_made_from(served: Served, web: Web) -> None:
    harness = served.harness
    mission = harness.mission()
    for _ in range(3):
        harness.owner.send("message.post", message(served, mission.group_id), group_id=mission.group_id)
    events = mission.events()
    package = harness.coordinator.sign(
        contextPackageId=harness.new_id(),
        version=1,
        missionId=mission.mission_id,
        groupId=mission.group_id,
        sourceEventRange={"fromSequence": 2, "toSequence": 3, "eventIds": [event["eventId"] for event in events[1:3]]},
        artifactHashes=[],
        summary="the story so far",
        decisions=[],
        constraints=[],
        unresolvedQuestions=[],
        generatedBy={"type": "agent", "id": harness.coordinator.id},
        generatedAt=harness.clock.now().text(),
    )
    mission.add(harness.workers[0], contextPackage=package)
    mission.add(harness.workers[1])
    path = f"/v0.1/groups/{segment(mission.group_id)}/events"
    for who, served_to in ((harness.workers[0], {2, 3}), (harness.workers[1], set())):
        token = await web.token(who)
        answers = {number: (await web.call("GET", f"{path}/{number}", token=token))[0] for number in (1, 2, 3, 4)}
        assert answers == {number: 200 if number in served_to else 403 for number in (1, 2, 3, 4)}


async def test_a_long_poll_for_organization_events(served: Served, web: Web) -> None:
    harness = served.harness
    token = await web.token(harness.workers[0])
    page = (await web.call("GET", "/v0.1/organization/events?limit=1000", token=token))[1]
    path = f"/v0.1/organization/events?after={page['next']}"
    assert (await web.call("GET", path, token=token))[1]["events"] == []
    asked = asyncio.create_task(web.call("GET", f"{path}&wait=60", token=token))
    await asyncio.sleep(0.1)
    # Others' sessions are none of its news.
    await served.agent(harness.workers[1])
    await asyncio.sleep(0.1)
    assert not asked.done()
    token = await web.token(harness.workers[0])
    await served.agent(harness.workers[0])
    status, news, _ = await asyncio.wait_for(asked, PATIENCE_SECONDS)
    assert status == 200
    assert [event["payload"]["agentId"] for event in news["events"]] == [harness.workers[0].id]
    assert news["next"] == news["events"][0].get("sequence", news["next"])
    assert (await web.call("GET", f"{path}&wait=61", token=token))[0] == 400
    assert (await web.call("GET", f"{path}&wait=1", token=await web.token(harness.workers[1])))[0] == 200


async def test_a_long_poll_returns_when_something_happens(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    token = await web.token(served.harness.owner)
    path = f"/v0.1/groups/{segment(mission.group_id)}/events?after=1&wait=60"
    asked = asyncio.create_task(web.call("GET", path, token=token))
    await asyncio.sleep(0.1)
    assert not asked.done()
    raw = served.harness.owner.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await web.call("POST", "/v0.1/commands", raw)
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, page, _ = await asked
    assert [event["sequence"] for event in page["events"]] == [2]


async def test_a_long_poll_ends_with_nothing(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    token = await web.token(served.harness.owner)
    path = f"/v0.1/groups/{segment(mission.group_id)}/events?after=1&wait=1"
    assert (await web.call("GET", path, token=token))[1] == {"events": [], "headSequence": 1}


async def test_views(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    work = mission.authorize()
    token = await web.token(served.harness.owner)
    listed = (await web.call("GET", "/v0.1/missions", token=token))[1]["missions"]
    assert [entry["missionId"] for entry in listed] == [mission.mission_id]
    assert listed[0]["membership"]["role"] == "mission_owner"
    view = (await web.call("GET", f"/v0.1/missions/{segment(mission.mission_id)}", token=token))[1]
    assert {"mission", "workItems", "progress", "headSequence", "memberships", "leases", "budget"} <= set(view)
    assert [item["workItemId"] for item in view["workItems"]] == [work.work_item_id]
    waiting = (await web.call("GET", "/v0.1/waiting", token=token))[1]["waiting"]
    assert {"who", "action", "on", "since", "deadline", "ifNothing"} <= set(waiting[0])
    reasons = (await web.call("GET", f"/v0.1/why?on={work.work_item_id}", token=token))[1]["why"]
    assert reasons[0]["sequence"] == 2
    assert (await web.call("GET", "/v0.1/why", token=token))[0] == 400
    assert (await web.call("GET", "/v0.1/missions", token=await web.token(served.harness.workers[0])))[1] == {
        "missions": []
    }


async def test_the_policy_log_is_for_those_who_may_inspect(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    worker = served.harness.workers[0]
    mission.add(worker)
    path = f"/v0.1/groups/{segment(mission.group_id)}/policy-log"
    entries = (await web.call("GET", path, token=await web.token(served.harness.owner)))[1]["entries"]
    assert entries
    assert (await web.call("GET", path, token=await web.token(worker)))[0] == 403


async def test_organization_events_are_for_whom_they_concern(served: Served, web: Web) -> None:
    worker = served.harness.workers[0]
    token = await web.token(worker)
    mine = (await web.call("GET", "/v0.1/organization/events", token=token))[1]["events"]
    assert {event["payload"]["agentId"] for event in mine} == {worker.id}
    everything = await web.call("GET", "/v0.1/organization/events", token=await web.token(served.harness.organization))
    assert len(everything[1]["events"]) > len(mine)
    assert (await web.call("GET", "/v0.1/organization/events", token=await web.token(served.harness.owner)))[1][
        "events"
    ] == []
    after = everything[1]["next"]
    assert (
        await web.call(
            "GET", f"/v0.1/organization/events?after={after}", token=await web.token(served.harness.organization)
        )
    )[1]["events"] == []


# --- the Organization ---


async def test_registry_and_cards(served: Served, web: Web) -> None:
    worker = served.harness.workers[0]
    token = await web.token(served.harness.owner)
    registry = (await web.call("GET", "/v0.1/registry", token=token))[1]
    assert registry == served.harness.node.registry.export()
    card = (await web.call("GET", f"/v0.1/agents/{segment(worker.id)}", token=token))[1]
    assert card["agentId"] == worker.id
    cards = (await web.call("GET", "/v0.1/agents", token=token))[1]["agents"]
    assert card in cards
    assert (await web.call("GET", "/v0.1/agents/urn%3Ax%3A1", token=token))[0] == 404
    assert (await web.call("GET", "/v0.1/cursors", token=token))[0] == 403


@pytest.mark.req("R-6.1-10", "R-6.1-11")
async def test_an_agents_record_stands_beside_its_card(served: Served, web: Web) -> None:
    work = served.harness.work("verified")
    worker = served.harness.workers[0]
    token = await web.token(served.harness.owner)
    at = f"/v0.1/agents/{segment(worker.id)}"
    card = (await web.call("GET", at, token=token))[1]
    told = (await web.call("GET", f"{at}/performance", token=token))[1]
    assert told["agentId"] == worker.id
    (record,) = told["performance"]
    assert record["groupId"] == work.mission.group_id
    assert record["capability"] in [{"id": known["id"], "version": known["version"]} for known in card["capabilities"]]
    assert (record["failed"], record["completed"]) == (0, 1)
    assert "performance" not in card
    stranger = await web.token(served.harness.organization)
    assert (await web.call("GET", f"{at}/performance", token=stranger))[1] == told, "a service reads everything"
    assert (await web.call("GET", "/v0.1/agents/urn%3Ax%3A1/performance", token=token))[0] == 404


async def test_tokens_for_tools(served: Served, web: Web) -> None:
    harness = served.harness
    mission = harness.mission()
    worker = harness.workers[0]
    work = mission.authorize()
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    token = await web.token(worker)
    lease = work.held["executionLeaseId"]
    asked = {"workItemId": work.work_item_id, "executionLeaseId": lease, "operations": ["read"]}
    status, capability, _ = await web.call("POST", "/v0.1/tokens/capability", asked, token)
    assert status == 200, capability
    assert capability["claims"]["allowedOperations"] == ["read"]
    status, member, _ = await web.call("POST", "/v0.1/tokens/membership", {"groupId": mission.group_id}, token)
    assert status == 200, member
    assert member["claims"]["groupId"] == mission.group_id
    for issued in (capability, member):
        verdict = (await web.call("POST", "/v0.1/tokens/verify", {"token": issued["token"]}))[1]
        assert verdict == {"valid": True, "claims": issued["claims"]}
        assert (await web.call("GET", "/v0.1/registry", token=issued["token"]))[0] == 401
    refused = await web.call("POST", "/v0.1/tokens/capability", asked | {"operations": ["destroy"]}, token)
    assert (refused[0], refused[1]["code"]) == (403, "AUTH_FORBIDDEN")
    assert (await web.call("POST", "/v0.1/tokens/verify", {"token": token}))[1] == {"valid": False}
    served.harness.clock.advance(3600)
    for issued in (capability, member):
        assert (await web.call("POST", "/v0.1/tokens/verify", {"token": issued["token"]}))[1] == {"valid": False}


# --- Artifacts ---


def digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


async def test_artifacts_in_and_out(served: Served, web: Web) -> None:
    token = await web.token(served.harness.owner)
    data = bytes(range(256)) * 20_000
    content_hash = f"sha256:{hashlib.sha256(data).hexdigest()}"
    status, answer, _ = await web.call("PUT", "/v0.1/artifacts", data, token, Content_Digest=digest(data))
    assert status == 201
    assert answer == {
        "contentHash": content_hash,
        "sizeBytes": len(data),
        "uri": f"urn:mwnode:artifact:{content_hash}",
    }
    assert (await web.call("PUT", "/v0.1/artifacts", data, token))[0] == 200
    for spelling in (segment(content_hash), content_hash.removeprefix("sha256:")):
        status, body, headers = await web.call("GET", f"/v0.1/artifacts/{spelling}", token=token)
        assert (status, body) == (200, data)
        assert headers["ETag"] == f'"{content_hash}"'
        assert headers["Content-Length"] == str(len(data))
    path = f"/v0.1/artifacts/{segment(content_hash)}"
    status, body, headers = await web.call("HEAD", path, token=token)
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(data)))
    assert (await web.call("GET", path, token=token, If_None_Match=f'"{content_hash}"'))[0] == 304


RANGES = {
    "bytes=0-9": (206, 0, 10),
    "bytes=300000-300099": (206, 300_000, 300_100),
    "bytes=511990-": (206, 511_990, 512_000),
    "bytes=-10": (206, 511_990, 512_000),
    "bytes=511999-999999": (206, 511_999, 512_000),
    "bytes=0-": (200, 0, 512_000),
    "bytes=9-3": (200, 0, 512_000),
    "items=1-2": (200, 0, 512_000),
    "bytes=0-1,5-6": (200, 0, 512_000),
    "bytes=512000-": (416, 0, 0),
}


@pytest.mark.parametrize("wanted", RANGES)
async def test_ranges(served: Served, web: Web, wanted: str) -> None:
    token = await web.token(served.harness.owner)
    data = bytes(range(256)) * 2000
    answer = (await web.call("PUT", "/v0.1/artifacts", data, token))[1]
    path = f"/v0.1/artifacts/{segment(answer['contentHash'])}"
    status, start, stop = RANGES[wanted]
    found, body, headers = await web.call("GET", path, token=token, Range=wanted)
    assert found == status
    assert body == data[start:stop]
    if status == 206:
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/512000"
    if status == 416:
        assert headers["Content-Range"] == "bytes */512000"


async def test_an_empty_artifact(served: Served, web: Web) -> None:
    token = await web.token(served.harness.owner)
    status, answer, _ = await web.call("PUT", "/v0.1/artifacts", b"", token)
    assert (status, answer["sizeBytes"]) == (201, 0)
    assert (await web.call("GET", f"/v0.1/artifacts/{segment(answer['contentHash'])}", token=token))[:2] == (200, b"")


@pytest.mark.parametrize("stated", [digest(b"other"), "sha-256=:short:", "sha-256=oops"])
async def test_a_wrong_digest_is_refused_and_leaves_nothing(served: Served, web: Web, stated: str) -> None:
    token = await web.token(served.harness.owner)
    status, error, _ = await web.call("PUT", "/v0.1/artifacts", b"these", token, Content_Digest=stated)
    assert (status, error["code"]) == (400, "INVALID_COMMAND")
    assert served.harness.node.artifacts.list() == []


async def test_an_artifact_over_the_limit(start: Start) -> None:
    served = await start(artifact_bytes=1000)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 1000

    async with aiohttp.ClientSession() as session:
        web = Web(served, session)
        token = await web.token(served.harness.owner)
        for data in (b"x" * 1001, body()):
            status, error, _ = await web.call("PUT", "/v0.1/artifacts", data, token)
            assert (status, error["code"]) == (413, "PROTOCOL_VIOLATION")
    assert served.harness.node.artifacts.list() == []


async def test_an_upload_that_breaks_off_leaves_nothing(served: Served, web: Web) -> None:
    token = await web.token(served.harness.owner)

    async def body() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise RuntimeError("the link broke")

    with pytest.raises((RuntimeError, aiohttp.ClientError)):
        await web.call("PUT", "/v0.1/artifacts", body(), token)
    await asyncio.sleep(0.1)
    assert served.harness.node.artifacts.list() == []


async def test_unpublished_bytes_are_for_their_uploader_only(served: Served, web: Web) -> None:
    harness = served.harness
    mission = harness.mission()
    worker, stranger = harness.workers
    work = mission.authorize()
    work.offer(worker)
    work.accept(worker)
    work.start(worker)
    token, other, owner = await web.token(worker), await web.token(stranger), await web.token(harness.owner)
    answer = (await web.call("PUT", "/v0.1/artifacts", b"the result", token))[1]
    path = f"/v0.1/artifacts/{segment(answer['contentHash'])}"
    absent = (await web.call("GET", "/v0.1/artifacts/" + "0" * 64, token=other))[1]
    assert (await web.call("GET", path, token=token))[0] == 200
    for who in (other, owner):
        status, error, _ = await web.call("GET", path, token=who)
        assert status == 404
        assert error == absent
    work.publish(b"the result", worker)
    assert (await web.call("GET", path, token=owner))[0] == 200
    assert (await web.call("GET", path, token=other))[0] == 404


# --- operation ---


async def test_health_and_metrics(served: Served, web: Web) -> None:
    mission = served.harness.mission()
    raw = served.harness.owner.command("message.post", message(served, mission.group_id), group_id=mission.group_id)
    await web.call("POST", "/v0.1/commands", raw)
    await web.call("POST", "/v0.1/commands", b"{}")
    assert (await web.call("GET", "/healthz"))[:2] == (200, {"status": "ok"})
    assert (await web.call("GET", "/readyz"))[:2] == (200, {"status": "ok"})
    status, text, headers = await web.call("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    figures = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    posted = 'mwnode_commands_total{kind="message.post",outcome="accepted",transport="http"}'
    assert figures[posted] == "1.0"
    unread = 'mwnode_commands_total{kind="unknown",outcome="SCHEMA_VALIDATION_FAILED",transport="http"}'
    assert figures[unread] == "1.0"
    assert float(figures["mwnode_commit_seconds_count"]) == float(figures["mwnode_commit_commands_count"]) >= 1
    assert float(figures["mwnode_commit_commands_sum"]) >= 1
    assert float(figures['mwnode_file_bytes{part="data"}']) > 0
    assert float(figures['mwnode_file_bytes{part="disk_free"}']) > 0
    assert figures["mwnode_file_dead_readers"] == "0.0"
    assert "mwnode_file_reader_lag_commits" in figures
    assert figures['mwnode_events_total{kind="message.posted"}'] == "1.0"
    assert figures["mwnode_connections"] == "0.0"


def test_only_kinds_that_there_are_become_figures() -> None:
    assert kind_of(b'{"kind":"message.post","payload":{}}') == "message.post"
    for raw in (b'{"kind":"ext.evil.1"}', b"{}", b"[]", b"{", b'{"kind":1}', b"[" * 100_000, b"\xff"):
        assert kind_of(raw) == "unknown"


async def test_unknown_paths_and_methods_are_answered_by_error_documents(web: Web) -> None:
    cases = {
        ("GET", "/v0.1/nothing"): (404, "GROUP_NOT_FOUND"),
        ("POST", "/"): (404, "GROUP_NOT_FOUND"),
        ("DELETE", "/v0.1/commands"): (405, "PROTOCOL_VIOLATION"),
        ("PUT", "/v0.1/missions"): (405, "PROTOCOL_VIOLATION"),
        ("GET", "/ws"): (400, "PROTOCOL_VIOLATION"),
    }
    for (method, path), expected in cases.items():
        status, error, headers = await web.call(method, path)
        assert (status, error["code"]) == expected, path
        assert error["retryable"] is False
        assert error["message"]
        if status == 405:
            assert headers["Allow"]


async def test_who_is_refused_is_logged(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mwnode.gateway.web")
    assert (await web.call("GET", "/v0.1/missions"))[0] == 401
    (record,) = [one.getMessage() for one in caplog.records if one.name == "mwnode.gateway.web"]
    assert record.startswith("refused GET /v0.1/missions from 127.0.0.1: AUTH_REQUIRED")
    caplog.clear()
    assert (await web.call("GET", "/v0.1/missions%0Afake", token="none"))[0] == 404
    assert not [one for one in caplog.records if "\n" in one.getMessage()]
