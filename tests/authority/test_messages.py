"""Conversations and Messages (sections 9 and 9.1)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from mwnode.authority.policy import Policy
from mwnode.authority.state import CONVERSATIONS, MESSAGES, TABLES, WORK_ITEMS, MessageRow
from mwnode.authority.views import effective_message
from mwnode.protocol.commands import CORE
from mwnode.protocol.documents import Actor, TextBlock
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import MessageCommitted
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA
from tests.authority.scene import GROUP, MISSION, later
from tests.authority.staging import Stage

POST, OPEN = "message.post", f"{CORE}.conversation_open"
MAIN = f"{GROUP}:mission"


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def anna(stage: Stage) -> Actor:
    return stage.workers["anna"]


def words(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {"messageId": f"urn:example:message:{number}", "conversationId": MAIN, "content": "hello", **changes}


def stored(stage: Stage, message_id: str) -> MessageRow:
    row = stage.view.get(MESSAGES, message_id)
    assert row is not None
    return row


def conversation(stage: Stage, actor: Actor, **changes: Any) -> dict[str, Any]:
    return {
        "conversation": {
            "conversationId": f"urn:example:conversation:{stage.number()}",
            "missionId": MISSION,
            "groupId": GROUP,
            "type": "restricted",
            "title": "quiet",
            "access": {"mode": "restricted", "members": [{"type": actor.type, "id": actor.id}]},
            "createdBy": {"type": actor.type, "id": actor.id},
            "createdAt": stage.now.text(),
            "state": "active",
            "revision": 1,
            **changes,
        }
    }


# --- message.post -----------------------------------------------------------------------------------------------------


@pytest.mark.req("R-9-05", "R-9-09", "R-9-12", "R-15.1-30", "R-15.2-18", "R-1-01")
@pytest.mark.parametrize("who", ["owner", "coordinator", "worker", "observer"])
def test_every_member_posts_and_nothing_but_the_conversation_moves(stage: Stage, who: str) -> None:
    watcher = stage.agent("watcher")
    stage.join(watcher, "observer")
    actor = {
        "owner": stage.owner,
        "coordinator": stage.coordinator,
        "worker": stage.workers["anna"],
        "observer": watcher,
    }[who]
    before = {table.code: dict(stage.view.rows[table.code]) for table in TABLES}
    decision = stage.ok(actor, POST, words(content="deploy immediately"), expectedRevision=1)
    fact = decision.facts[0]
    assert (fact.kind, fact.conversation_id, fact.aggregate_revision) == ("message.posted", MAIN, 2)
    assert isinstance(fact.payload, MessageCommitted)
    message = fact.payload.message
    assert (message.authority, message.author, message.kind) == (False, actor, "message")
    assert message.content == (TextBlock(text="deploy immediately"),)
    changed = {code for code, rows in before.items() if rows != stage.view.rows[code]}
    assert changed == {table.code for table in TABLES if table.name in ("messages", "conversations", "rates")}


@pytest.mark.req("R-9-10", "R-4-02", "R-7.1-29")
def test_a_directive_moves_no_work(stage: Stage) -> None:
    item = stage.authorize("one")
    before = stage.item(item)
    decision = stage.ok(stage.owner, POST, words(content="start it at once", announcement=True))
    payload = decision.facts[0].payload
    assert isinstance(payload, MessageCommitted)
    assert payload.announcement is True
    assert stage.item(item) == before


@pytest.mark.req("R-9-07")
def test_content_holds_text_artifacts_and_data(stage: Stage, anna: Actor) -> None:
    content = [
        {"type": "text", "text": "see"},
        {"type": "artifact_ref", "artifactHash": "sha256:" + "0" * 64},
        {"type": "data_ref", "schema": "urn:example:schema", "data": {"a": [1, 2]}},
    ]
    mention = {"type": "agent", "id": stage.coordinator.id}
    payload = words(content=content, mentions=[mention], references=["urn:example:work:one"])
    stage.ok(anna, POST, payload)
    message = stored(stage, "urn:example:message:1").message
    assert len(message.content) == 3
    assert message.mentions == (stage.coordinator,)
    assert message.references == ("urn:example:work:one",)


@pytest.mark.req("R-9-05", "R-9-07", "R-9-08", "R-9-09", "R-19-19")
@pytest.mark.parametrize(
    "changes",
    [
        {"content": []},
        {"content": ""},
        {"content": [{"type": "image", "data": "AAAA"}]},
        {"content": [{"type": "text", "text": "x", "partial": True}]},
        {"content": [{"type": "data_ref", "schema": "urn:x:s", "data": "x" * 65_535}]},
        {"authority": True},
        {"mentions": [{"type": "system", "id": "urn:x:y"}]},
        {"delta": True},
        {"conversationId": "urn:example:conversation:none"},
        {"conversationId": None},
        {"messageId": "not a uri"},
    ],
    ids=lambda changes: next(iter(changes)) + str(next(iter(changes.values())))[:12],
)
def test_what_is_no_message(stage: Stage, anna: Actor, changes: dict[str, Any]) -> None:
    assert stage.refused(anna, POST, words(**changes)).code is ErrorCode.INVALID_COMMAND


def test_false_authority_and_data_up_to_the_limit_are_taken(stage: Stage, anna: Actor) -> None:
    data = {"type": "data_ref", "schema": "urn:x:s", "data": "x" * 65_534}
    stage.ok(anna, POST, words(content=[data], authority=False))


@pytest.mark.req("R-9.1-39", "R-2-14")
def test_a_message_id_stands_for_one_message(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    before = stored(stage, "urn:example:message:1")
    assert stage.refused(anna, POST, words(content="other")).code is ErrorCode.INVALID_COMMAND
    assert stored(stage, "urn:example:message:1") == before


def test_the_conversations_revision_is_compared(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    assert stage.refused(anna, POST, words(2), expectedRevision=1).code is ErrorCode.REVISION_CONFLICT
    stage.ok(anna, POST, words(2), expectedRevision=2)


def test_the_conversation_may_stand_in_the_envelope_but_not_differ(stage: Stage, anna: Actor) -> None:
    payload = words()
    del payload["conversationId"]
    stage.ok(anna, POST, payload, conversationId=MAIN)
    assert stage.refused(anna, POST, words(2), conversationId="urn:x:other").code is ErrorCode.INVALID_COMMAND


@pytest.mark.req("R-9-01")
def test_a_message_in_a_work_items_conversation_names_the_item(stage: Stage, anna: Actor) -> None:
    item = stage.authorize("one")
    place = stage.item(item).item.conversation_id
    decision = stage.ok(anna, POST, words(conversationId=place))
    assert (decision.facts[0].conversation_id, decision.facts[0].work_item_id) == (place, item)


def test_a_conversation_of_another_group_is_unknown_here(stage: Stage, anna: Actor) -> None:
    stage.found("urn:example:mission:2", "urn:example:group:2")
    refusal = stage.refused(anna, POST, words(conversationId="urn:example:group:2:mission"))
    assert refusal.code is ErrorCode.INVALID_COMMAND


def test_people_talk_about_a_mission_that_ended(stage: Stage, anna: Actor) -> None:
    stage.ok(stage.owner, "mission.cancel", {"reason": "no"})
    stage.ok(anna, POST, words())


def test_posting_needs_its_scope(stage: Stage) -> None:
    reader = stage.agent("reader")
    stage.join(reader, "observer", scopes=["message.read"])
    assert stage.refused(reader, POST, words()).code is ErrorCode.AUTH_FORBIDDEN


# --- rates and clarifications -----------------------------------------------------------------------------------------


@pytest.mark.req("R-20-01", "R-19-31")
def test_the_message_rate_is_a_sliding_minute_per_actor_and_group(stage: Stage, anna: Actor) -> None:
    stage.policy = Policy(message_rate=2)
    stage.ok(anna, POST, words(1))
    stage.advance(20)
    stage.ok(anna, POST, words(2))
    refused = stage.send(anna, POST, words(3))
    assert refused.code is ErrorCode.RATE_LIMITED  # type: ignore[union-attr]
    assert refused.retry_after_ms == 40_000  # type: ignore[union-attr]
    stage.ok(stage.coordinator, POST, words(4))
    stage.advance(39)
    assert stage.refused(anna, POST, words(3)).code is ErrorCode.RATE_LIMITED
    stage.advance(1)
    stage.ok(anna, POST, words(3))
    assert stage.refused(anna, POST, words(5)).code is ErrorCode.RATE_LIMITED


def question(number: int, *, resolved: bool) -> dict[str, Any]:
    data = {"question": f"urn:example:question:{number}", "resolved": resolved}
    return {"type": "data_ref", "schema": CLARIFICATION_SCHEMA, "data": data}


@pytest.mark.req("R-20-01")
def test_open_clarifications_are_bounded(stage: Stage, anna: Actor) -> None:
    stage.policy = Policy(clarification_rounds=2)
    stage.ok(anna, POST, words(1, content=[question(1, resolved=False)]))
    stage.ok(anna, POST, words(2, content=[question(2, resolved=False)]))
    third = words(3, content=[question(3, resolved=False)])
    assert stage.refused(anna, POST, third).code is ErrorCode.RATE_LIMITED
    stage.ok(anna, POST, words(4, content=[question(2, resolved=False)]))  # asked already
    stage.ok(anna, POST, words(5, content="just words"))
    stage.ok(stage.coordinator, POST, words(6, content=[question(1, resolved=True)]))
    stage.ok(anna, POST, third)
    row = stage.view.get(CONVERSATIONS, MAIN)
    assert row is not None
    assert row.open_questions == ("urn:example:question:2", "urn:example:question:3")


@pytest.mark.req("R-20-01")
@pytest.mark.parametrize(
    "data",
    [{"question": "urn:x:1"}, {"question": 1, "resolved": True}, {"question": "urn:x:1", "resolved": "no"}, "what?"],
    ids=str,
)
def test_a_clarification_has_its_shape(stage: Stage, anna: Actor, data: Any) -> None:
    block = {"type": "data_ref", "schema": CLARIFICATION_SCHEMA, "data": data}
    assert stage.refused(anna, POST, words(content=[block])).code is ErrorCode.INVALID_COMMAND


# --- amendments -------------------------------------------------------------------------------------------------------

AMENDMENTS: dict[str, tuple[str, str]] = {
    "message.correct": ("message.corrected", "correction"),
    "message.retract": ("message.retracted", "retraction"),
    "message.redact": ("message.redacted", "redaction"),
}


def amendment(kind: str, target: str = "urn:example:message:1", **changes: Any) -> dict[str, Any]:
    payload: dict[str, Any] = {"amendmentId": "urn:example:message:9", "messageId": target, "reason": "wrong number"}
    if kind == "message.correct":
        payload["replacementContent"] = "hello again"
    return {**payload, **changes}


@pytest.mark.req("R-9.1-39", "R-9.1-40", "R-15.1-31", "R-15.1-32", "R-15.1-33", "R-15.2-19", "R-15.2-20", "R-15.2-21")
@pytest.mark.parametrize("kind", AMENDMENTS)
def test_an_amendment_is_a_new_event_and_the_message_stays(stage: Stage, anna: Actor, kind: str) -> None:
    event_kind, message_kind = AMENDMENTS[kind]
    stage.ok(anna, POST, words())
    before = stored(stage, "urn:example:message:1")
    actor = stage.coordinator if kind == "message.redact" else anna
    decision = stage.ok(actor, kind, amendment(kind), expectedRevision=2)
    assert decision.facts[0].kind == event_kind
    after = stored(stage, "urn:example:message:9").message
    assert (after.kind, after.target_message_id, after.reason) == (
        message_kind,
        before.message.message_id,
        "wrong number",
    )
    text = "hello again" if kind == "message.correct" else "wrong number"
    assert after.content == (TextBlock(text=text),)
    assert stored(stage, "urn:example:message:1") == before
    events = [event.kind for event in stage.events if event.kind.startswith("message.")]
    assert events == ["message.posted", event_kind]


@pytest.mark.req("R-9.1-40", "R-19-19")
@pytest.mark.parametrize("kind", AMENDMENTS)
@pytest.mark.parametrize("name", ["unknown", "used id", "an amendment", "no reason", "revision"])
def test_an_amendment_that_names_the_wrong_thing(stage: Stage, anna: Actor, kind: str, name: str) -> None:
    stage.ok(anna, POST, words())
    stage.ok(anna, "message.correct", amendment("message.correct", amendmentId="urn:example:message:8"))
    actor = stage.coordinator if kind == "message.redact" else anna
    payloads = {
        "unknown": amendment(kind, "urn:example:message:77"),
        "used id": amendment(kind, amendmentId="urn:example:message:1"),
        "an amendment": amendment(kind, "urn:example:message:8"),
        "no reason": amendment(kind, reason=None),
        "revision": amendment(kind),
    }
    envelope = {"expectedRevision": 1} if name == "revision" else {}
    code = ErrorCode.REVISION_CONFLICT if name == "revision" else ErrorCode.INVALID_COMMAND
    assert stage.refused(actor, kind, payloads[name], **envelope).code is code


@pytest.mark.req("R-19-14", "R-15.1-33")
def test_authors_correct_and_retract_owners_and_coordinators_redact(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    for kind in ("message.correct", "message.retract"):
        for actor in (stage.coordinator, stage.owner):
            assert stage.refused(actor, kind, amendment(kind)).code is ErrorCode.AUTH_FORBIDDEN
    assert stage.refused(anna, "message.redact", amendment("message.redact")).code is ErrorCode.AUTH_FORBIDDEN
    stage.ok(stage.owner, "message.redact", amendment("message.redact"))
    stage.ok(
        stage.organization,
        "message.redact",
        amendment("message.redact", amendmentId="urn:example:message:10"),
        groupId=GROUP,
    )


def test_an_author_amends_after_its_epoch_moved(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    payload = {"principal": {"type": "agent", "id": anna.id}, "role": "reviewer", "expectedMembershipEpoch": 1}
    stage.ok(stage.coordinator, "membership.change", payload)
    stage.ok(anna, "message.correct", amendment("message.correct"))


@pytest.mark.req("R-9.1-41", "R-G-10")
def test_a_redaction_is_in_the_policy_log(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    stage.ok(stage.owner, "message.redact", amendment("message.redact"))
    entry = stage.view.policy_log(GROUP)[-1]
    assert (entry.decision, entry.details["reason"], entry.actor) == ("message redacted", "wrong number", stage.owner)


@pytest.mark.req("R-9.1-42")
def test_the_effective_form_of_a_message_is_its_newest_but_a_redaction_stays(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())

    def effective() -> str:
        rows = sorted((row for row in stage.view.all(MESSAGES)), key=lambda row: row.sequence)
        return effective_message(rows[0].message, [row.message for row in rows]).message_id

    assert effective() == "urn:example:message:1"
    steps = [("message.correct", 2), ("message.correct", 3), ("message.retract", 4), ("message.redact", 5)]
    for kind, number in steps:
        actor = stage.coordinator if kind == "message.redact" else anna
        stage.ok(actor, kind, amendment(kind, amendmentId=f"urn:example:message:{number}"))
        assert effective() == f"urn:example:message:{number}"
    stage.ok(anna, "message.correct", amendment("message.correct", amendmentId="urn:example:message:6"))
    assert effective() == "urn:example:message:5"
    assert len(stage.view.all(MESSAGES)) == 6


# --- conversation_open ------------------------------------------------------------------------------------------------


@pytest.mark.req("R-9-02", "R-9-03")
@pytest.mark.parametrize("kind", ["review", "restricted"])
def test_review_and_restricted_conversations_are_opened(stage: Stage, anna: Actor, kind: str) -> None:
    item = stage.authorize("one")
    access = {"mode": "group"} if kind == "review" else None
    payload = conversation(stage, anna, type=kind, primaryWorkItemId=item)
    if access is not None:
        payload["conversation"]["access"] = access
    head = stage.view.head(GROUP)
    decision = stage.ok(anna, OPEN, payload)
    fact = decision.facts[0]
    assert (fact.kind, fact.sequence, fact.work_item_id) == (f"{CORE}.conversation_opened", head + 1, item)
    assert stage.view.get(CONVERSATIONS, payload["conversation"]["conversationId"]) is not None
    assert len(stage.view.in_group(WORK_ITEMS, GROUP)) == 1


@pytest.mark.req("R-9-02")
@pytest.mark.parametrize(
    "changes",
    [
        {"type": "group"},
        {"type": "work_item", "primaryWorkItemId": "urn:example:work:one"},
        {"access": {"mode": "group"}},
        {"access": {"mode": "restricted"}},
        {"access": {"mode": "restricted", "members": []}},
        {"missionId": "urn:example:mission:2"},
        {"groupId": "urn:example:group:2"},
        {"createdBy": {"type": "agent", "id": "urn:example:agent:coordinator"}},
        {"state": "closed"},
        {"revision": 2},
        {"createdAt": "2029-12-31T23:54:59Z"},
        {"createdAt": "2030-01-01T00:01:01Z"},
        {"primaryWorkItemId": "urn:example:work:none"},
        {"conversationId": MAIN},
    ],
    ids=lambda changes: "-".join(f"{name}={value}" for name, value in changes.items())[:40],
)
def test_a_conversation_that_claims_too_much_is_not_opened(stage: Stage, anna: Actor, changes: dict[str, Any]) -> None:
    stage.authorize("one")
    assert stage.refused(anna, OPEN, conversation(stage, anna, **changes)).code is ErrorCode.INVALID_COMMAND


def test_a_new_conversation_has_no_revision_to_expect(stage: Stage, anna: Actor) -> None:
    refusal = stage.refused(anna, OPEN, conversation(stage, anna), expectedRevision=1)
    assert refusal.code is ErrorCode.REVISION_CONFLICT
    stage.ok(anna, OPEN, conversation(stage, anna, createdAt=later(stage, -300)), expectedRevision=0)


@pytest.mark.req("R-9-02", "R-9-04")
def test_a_restricted_conversation_is_its_members_the_coordinators_and_the_owners(stage: Stage, anna: Actor) -> None:
    ben, carl = stage.worker("ben"), stage.worker("carl")
    members = [{"type": "agent", "id": carl.id}]
    payload = conversation(stage, anna, access={"mode": "restricted", "members": members})
    stage.ok(anna, OPEN, payload)
    place = payload["conversation"]["conversationId"]
    assert stage.refused(ben, POST, words(1, conversationId=place)).code is ErrorCode.AUTH_FORBIDDEN
    for number, actor in enumerate((anna, carl, stage.coordinator, stage.owner), start=1):
        stage.ok(actor, POST, words(number, conversationId=place))


def test_a_message_has_no_empty_lists(stage: Stage, anna: Actor) -> None:
    stage.ok(anna, POST, words())
    message = stored(stage, "urn:example:message:1").message
    assert (message.mentions, message.references) == (UNSET, UNSET)
