"""Conversations and Messages: immutable, complete, and never authority (R-9-10, R-9.1-39).

A Message moves nothing but its Conversation. What was said is amended by further Messages that name the first one; the
first one stays as it is (R-9.1-40).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from msgspec import UNSET, structs

from mwnode.authority import offline
from mwnode.authority.case import Case, refuse
from mwnode.authority.cooperation import check_rate, count_rate
from mwnode.authority.packages import may_hold
from mwnode.authority.request import EventFact
from mwnode.authority.state import CONVERSATIONS, MESSAGES, WORK_ITEMS, ConversationRow, MessageRow
from mwnode.authority.table import admit_mission
from mwnode.authority.view import Overlay
from mwnode.protocol.commands import (
    CORE,
    Content,
    ConversationOpen,
    MessageCorrect,
    MessagePost,
    MessageRedact,
    MessageRetract,
)
from mwnode.protocol.documents import Actor, ContentBlock, Conversation, DataBlock, Message, TextBlock
from mwnode.protocol.errors import ErrorCode
from mwnode.protocol.events import ConversationOpened, MessageCommitted
from mwnode.protocol.identifiers import CLARIFICATION_SCHEMA
from mwnode.protocol.instants import parse
from mwnode.protocol.jcs import canonical

DATA_BYTES_MAX = 65_536
"""Bytes of JCS in one ``data_ref`` block; larger things are Artifacts (R-9-08, decision F18)."""


# --- what every Message shares ----------------------------------------------------------------------------------------


def blocks(content: Content) -> tuple[ContentBlock, ...]:
    """Content as blocks; a bare string is one text block."""
    return (TextBlock(text=content),) if isinstance(content, str) else content


def _check_blocks(content: tuple[ContentBlock, ...], path: str) -> None:
    for index, block in enumerate(content):
        if isinstance(block, DataBlock) and len(canonical(block.data)) > DATA_BYTES_MAX:
            refuse(
                ErrorCode.INVALID_COMMAND,
                f"data of more than {DATA_BYTES_MAX} bytes belongs into an Artifact; refer to it with artifact_ref",
                "R-9-08",
                details={"path": f"{path}/{index}/data"},
            )


def _conversation(case: Case, conversation_id: str) -> ConversationRow:
    row = case.need(CONVERSATIONS, conversation_id, "Conversation")
    if row.conversation.group_id != case.group_id:
        refuse(ErrorCode.INVALID_COMMAND, f"Conversation {conversation_id} is not known here", "R-19-19")
    return row


def inspects_all(case: Case, actor: Actor) -> bool:
    """Whether the actor sees the whole Group, restricted Conversations included (R-8-07, R-9-04)."""
    member = case.membership(actor)
    return member is not None and member.membership.state == "active" and "mission.inspect" in member.membership.scopes


def takes_part(case: Case, conversation: Conversation, actor: Actor) -> bool:
    """Whether the actor may read and write in a Conversation of its Group."""
    access = conversation.access
    if access.mode == "group" or conversation.created_by == actor:
        return True
    return (access.members is not UNSET and actor in access.members) or inspects_all(case, actor)


def _check_access(case: Case, conversation: Conversation) -> None:
    """Who writes in a Conversation. What a provisional Member may not do is refused alike, whatever the kind: its
    Membership is not one for that yet (R-19-16, decision A2)."""
    actor = case.command.actor
    member = case.membership(actor)
    if member is not None and member.membership.state == "provisional":
        work_item_id = conversation.primary_work_item_id
        row = case.view.get(WORK_ITEMS, work_item_id) if work_item_id is not UNSET else None
        if conversation.type != "work_item" or row is None or not may_hold(case, row, actor):
            refuse(
                ErrorCode.MEMBERSHIP_REQUIRED,
                "a provisional Member writes in the Conversation of the WorkItem that it is offered, and nowhere else",
                "R-19-16",
            )
    if not takes_part(case, conversation, actor):
        refuse(ErrorCode.AUTH_FORBIDDEN, "this Conversation is restricted to its members", "R-9-02")


def _check_open(conversation: Conversation) -> None:
    if conversation.state != "active":
        refuse(ErrorCode.INVALID_STATE_TRANSITION, "the Conversation is closed", "R-19-20")


def _commit(case: Case, kind: str, row: ConversationRow, message: Message, *, announcement: bool = False) -> None:
    conversation = row.conversation
    work_item_id = conversation.primary_work_item_id
    case.emit(
        kind,
        MessageCommitted(
            revision=conversation.revision + 1,
            state=conversation.state,
            message=message,
            announcement=True if announcement else UNSET,
        ),
        conversation_id=conversation.conversation_id,
        work_item_id=None if work_item_id is UNSET else work_item_id,
    )


# --- message.post -----------------------------------------------------------------------------------------------------


def post(case: Case) -> None:
    """Commit one finished Message; it carries no authority whatever it says (R-9-05, R-9-09)."""
    payload = case.payload(MessagePost)
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    conversation_id = case.reference("conversation_id", payload.conversation_id)
    row = _conversation(case, conversation_id)
    conversation = row.conversation
    _check_open(conversation)
    case.unused(MESSAGES, payload.message_id, "Message")
    content = blocks(payload.content)
    _check_blocks(content, "/payload/content")
    questions = _questions(row.open_questions, content, check=True)
    _check_access(case, conversation)
    case.expect_revision(conversation.revision)
    check_rate(case, "message_rate", case.policy.message_rate)
    if len(questions) > case.policy.clarification_rounds and len(questions) > len(row.open_questions):
        refuse(
            ErrorCode.RATE_LIMITED,
            f"at most {case.policy.clarification_rounds} clarifications may be open at once; resolve one first",
            "R-20-01",
            details={"policyName": "clarification_rounds"},
        )
    item_id = conversation.primary_work_item_id if conversation.type == "work_item" else UNSET
    offline.reconcile(case, None if item_id is UNSET else case.view.get(WORK_ITEMS, item_id))
    case.receipt_kind = "message.posted"
    message = Message(
        message_id=payload.message_id,
        mission_id=mission.mission_id,
        group_id=mission.group_id,
        conversation_id=conversation_id,
        author=case.command.actor,
        kind="message",
        authority=False,
        content=content,
        committed_at=case.now_text,
        mentions=payload.mentions or UNSET,
        references=payload.references or UNSET,
    )
    _commit(case, "message.posted", row, message, announcement=payload.announcement)


def _questions(open_questions: tuple[str, ...], content: tuple[ContentBlock, ...], *, check: bool) -> tuple[str, ...]:
    """The clarifications that are open after these blocks: each asks or resolves one (decision F18)."""
    questions = list(open_questions)
    for index, block in enumerate(content):
        if not isinstance(block, DataBlock) or block.schema != CLARIFICATION_SCHEMA:
            continue
        data: Any = block.data
        fits = (
            isinstance(data, dict)
            and data.keys() == {"question", "resolved"}
            and isinstance(data["question"], str)
            and isinstance(data["resolved"], bool)
        )
        if not fits:
            if check:
                refuse(
                    ErrorCode.INVALID_COMMAND,
                    'the data of a clarification is {"question": ID, "resolved": true or false}',
                    "R-20-01",
                    details={"path": f"/payload/content/{index}/data"},
                )
            continue
        if data["resolved"] and data["question"] in questions:
            questions.remove(data["question"])
        elif not data["resolved"] and data["question"] not in questions:
            questions.append(data["question"])
    return tuple(questions)


# --- amendments -------------------------------------------------------------------------------------------------------


def _target(case: Case, message_id: str) -> tuple[Message, ConversationRow]:
    row = case.need(MESSAGES, message_id, "Message")
    target = row.message
    if target.group_id != case.group_id:
        refuse(ErrorCode.INVALID_COMMAND, f"Message {message_id} is not known here", "R-19-19")
    if target.kind != "message":
        refuse(
            ErrorCode.INVALID_COMMAND,
            f"{message_id} is itself a {target.kind}; name the Message that it amends",
            "R-9.1-40",
            details={"path": "/payload/messageId"},
        )
    return target, _conversation(case, target.conversation_id)


def _amend(
    case: Case,
    event_kind: str,
    message_kind: str,
    payload: MessageCorrect | MessageRetract | MessageRedact,
    content: tuple[ContentBlock, ...],
) -> None:
    admit_mission(case.mission().mission.state, case.command.kind)
    target, row = _target(case, payload.message_id)
    _check_open(row.conversation)
    envelope = case.command.conversation_id
    if envelope is not UNSET and envelope != target.conversation_id:
        refuse(
            ErrorCode.INVALID_COMMAND,
            "conversationId names another Conversation than the Message's",
            details={"path": "/conversationId"},
        )
    case.unused(MESSAGES, payload.amendment_id, "Message")
    _check_blocks(content, "/payload/replacementContent")
    if message_kind != "redaction" and target.author != case.command.actor:
        refuse(ErrorCode.AUTH_FORBIDDEN, "only its author corrects or retracts a Message", "R-9.1-40")
    case.expect_revision(row.conversation.revision)
    amendment = Message(
        message_id=payload.amendment_id,
        mission_id=target.mission_id,
        group_id=target.group_id,
        conversation_id=target.conversation_id,
        author=case.command.actor,
        kind=message_kind,  # type: ignore[arg-type]  # one of the three literals that the handlers below pass
        authority=False,
        content=content,
        committed_at=case.now_text,
        target_message_id=target.message_id,
        reason=payload.reason,
    )
    _commit(case, event_kind, row, amendment)


def correct(case: Case) -> None:
    """Append a correction by the author (R-15.1-31)."""
    payload = case.payload(MessageCorrect)
    _amend(case, "message.corrected", "correction", payload, blocks(payload.replacement_content))


def retract(case: Case) -> None:
    """Append a retraction by the author; its content repeats the reason (R-15.1-32, decision A34)."""
    payload = case.payload(MessageRetract)
    _amend(case, "message.retracted", "retraction", payload, (TextBlock(text=payload.reason),))


def redact(case: Case) -> None:
    """Append a redaction and write its reason to the policy log (R-9.1-41, R-15.1-33)."""
    payload = case.payload(MessageRedact)
    _amend(case, "message.redacted", "redaction", payload, (TextBlock(text=payload.reason),))
    case.note_policy(
        "message redacted",
        {
            "messageId": payload.message_id,
            "amendmentId": payload.amendment_id,
            "reason": payload.reason,
            "eventId": case.facts[-1].event_id,
        },
        group_id=case.group_id,
    )


# --- ext.mwnode.core.conversation_open --------------------------------------------------------------------------------


def open_conversation(case: Case) -> None:
    """Open a Conversation of type ``review`` or ``restricted`` (R-9-02). It stays in the Group's audit boundary
    (R-9-03)."""
    payload = case.payload(ConversationOpen)
    conversation = payload.conversation
    mission = case.mission().mission
    admit_mission(mission.state, case.command.kind)
    case.unused(CONVERSATIONS, conversation.conversation_id, "Conversation")
    expected: dict[str, tuple[object, object]] = {
        "missionId": (conversation.mission_id, mission.mission_id),
        "groupId": (conversation.group_id, mission.group_id),
        "createdBy": (conversation.created_by, case.command.actor),
        "state": (conversation.state, "active"),
        "revision": (conversation.revision, 1),
    }
    for name, (given, right) in expected.items():
        if given != right:
            _misfit(f"a new Conversation's {name} must be {right}", name)
    if conversation.type not in ("review", "restricted"):
        _misfit("only Conversations of type review or restricted are opened", "type")
    created_at = parse(conversation.created_at)
    earliest = case.now.plus(-case.policy.freshness_window)
    if not earliest <= created_at <= case.now.plus(case.policy.clock_skew):
        _misfit("createdAt must be now, within the freshness window", "createdAt")
    work_item_id = conversation.primary_work_item_id
    if work_item_id is not UNSET:
        item = case.need(WORK_ITEMS, work_item_id, "WorkItem").item
        if item.group_id != case.group_id:
            _misfit("primaryWorkItemId names no WorkItem of this Group", "primaryWorkItemId")
    case.expect_revision(0)
    case.emit(
        f"{CORE}.conversation_opened",
        ConversationOpened(revision=1, state="active", conversation=conversation),
        conversation_id=conversation.conversation_id,
        work_item_id=None if work_item_id is UNSET else work_item_id,
    )


def _misfit(message: str, member: str) -> NoReturn:
    refuse(ErrorCode.INVALID_COMMAND, message, "R-9-02", details={"path": f"/payload/conversation/{member}"})


# --- folding ----------------------------------------------------------------------------------------------------------


def _fold_message(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, MessageCommitted)
    message = payload.message
    assert fact.sequence is not None
    view.put(MESSAGES, MessageRow(message, fact.sequence))
    row = view.get(CONVERSATIONS, message.conversation_id)
    assert row is not None
    questions = row.open_questions
    if message.kind == "message":
        questions = _questions(questions, message.content, check=False)
    conversation = structs.replace(row.conversation, revision=payload.revision)
    view.put(CONVERSATIONS, structs.replace(row, conversation=conversation, open_questions=questions))


def _fold_posted(view: Overlay, fact: EventFact) -> None:
    _fold_message(view, fact)
    count_rate(view, "message_rate", fact)


def _fold_opened(view: Overlay, fact: EventFact) -> None:
    payload = fact.payload
    assert isinstance(payload, ConversationOpened)
    view.put(CONVERSATIONS, ConversationRow(payload.conversation))


DECIDERS: dict[str, Callable[[Case], None]] = {
    "message.post": post,
    "message.correct": correct,
    "message.retract": retract,
    "message.redact": redact,
    f"{CORE}.conversation_open": open_conversation,
}
EVOLVERS: dict[str, Callable[[Overlay, EventFact], None]] = {
    "message.posted": _fold_posted,
    "message.corrected": _fold_message,
    "message.retracted": _fold_message,
    "message.redacted": _fold_message,
    f"{CORE}.conversation_opened": _fold_opened,
}
