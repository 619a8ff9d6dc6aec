"""Works that are Missions of their own: promoted, followed, reviewed as a whole and adopted (section 14).

The Parent Coordinator is the child's MissionOwner. It follows the child's facts and announcements and is not woken by
the child's other Messages (R-14-21, R-14-22); what the child's Coordinator asks of it goes on to the human, and the
answer back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field

from mwnode.client.fold import WorkView, decode_payload
from mwnode.coordinator.board import Board
from mwnode.coordinator.candidates import called
from mwnode.coordinator.effects import Check, Follow
from mwnode.coordinator.graph import Instance
from mwnode.coordinator.plan import Plan
from mwnode.coordinator.review import Checked
from mwnode.coordinator.whole import Whole
from mwnode.protocol import terms
from mwnode.protocol.commands import (
    CORE,
    ArtifactForward,
    MessagePost,
    MissionApprove,
    MissionCreateChild,
    MissionRequestChanges,
)
from mwnode.protocol.documents import Artifact, DataBlock, Event, Message, Mission
from mwnode.protocol.events import ArtifactPublished, MissionCancelled, MissionTerminated
from mwnode.protocol.identifiers import INPUTS_SCHEMA, RETRY_SCHEMA, mission_conversation_id
from mwnode.protocol.instants import parse

PASSED_ON_SCHEMA = "urn:mwnode:schema:passed-on"
"""The ``data_ref`` schema of a Message that repeats one of another Group: which."""
_OVER = frozenset({"failed", "cancelled"})


class Child(Struct):
    """One child Mission as its owner follows it."""

    local: str
    work_item_id: str
    mission_id: str
    board: Board
    live: bool = False
    """Whether everything up to the present was replayed."""
    ended: str = ""
    """Why it failed or was cancelled."""
    manifests: dict[str, Artifact] = field(default_factory=dict)
    checked: dict[str, Checked] | None = None
    """What fetching the submitted Artifacts showed."""


def child_ids(parent_work_item_id: str, number: int) -> tuple[str, str]:
    """Mission and Group of the WorkItem's child of that number; the same in every run of every Coordinator."""
    digest = hashlib.sha256(f"child\0{parent_work_item_id}\0{number}".encode()).hexdigest()[:32]
    return f"urn:mwnode:mission:{digest}", f"urn:mwnode:group:{digest}"


class Children:
    """The child Missions of one Mission. Part of the engine, kept apart because it is an idea of its own."""

    def __init__(self, engine: Whole) -> None:
        self.engine = engine
        self.by_group: dict[str, Child] = {}

    # --- incoming -----------------------------------------------------------------------------------------------------

    def created(self, work_item_id: str, mission_id: str, group_id: str) -> None:
        """A WorkItem of the Mission was promoted: its child is followed from now on."""
        view = self.engine.board.views[work_item_id]
        local = terms.text(view.item.contract, "localId") or view.item.contract.goal
        self.by_group[group_id] = Child(local, work_item_id, mission_id, Board(group_id))
        self.engine.emit(Follow(self.engine.board.group_id, group_id))

    def event(self, event: Event) -> None:
        """Take one Event of a child's Group."""
        child = self.by_group[event.group_id] if event.group_id is not UNSET else None
        if child is None or event.sequence is UNSET or event.sequence <= child.board.sequence:
            return
        was = child.board.state
        child.board.apply(event)
        payload = decode_payload(event)
        if isinstance(payload, ArtifactPublished):
            child.manifests[payload.artifact.content_hash] = payload.artifact
        elif isinstance(payload, MissionTerminated | MissionCancelled):
            child.ended = payload.reason
        if child.board.state != was:
            child.checked = None
            self.engine.note("child", work=child.local, missionId=child.mission_id, state=child.board.state)
        if child.live:
            self.engine.advance()

    def caught_up(self, group_id: str) -> None:
        """The whole log of a child was replayed: it may be acted upon."""
        child = self.by_group[group_id]
        child.live = True
        self.engine.advance()

    def restored(self, group_id: str, state: Mapping[str, Any]) -> None:
        """A child's Group was archived and its Events removed: the body of its snapshot says how it ended and what it
        made (R-16-61)."""
        child = self.by_group[group_id]
        mission = msgspec.convert(state["mission"], Mission)
        child.board.mission, child.board.state = mission, mission.state
        child.manifests = {one.content_hash: one for one in msgspec.convert(state["artifacts"], tuple[Artifact, ...])}
        child.ended = "its Group is archived"

    def checked(self, mission_id: str, results: Sequence[Checked]) -> bool:
        """What fetching a child's submitted Artifacts showed; False when no child has that identifier."""
        for child in self.by_group.values():
            if child.mission_id == mission_id:
                child.checked = {one.content_hash: one for one in results}
                return True
        return False

    # --- what the parent's graph asks ---------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every child is known up to the present; nothing is decided before."""
        return all(child.live for child in self.by_group.values())

    def adopt(self) -> None:
        """An approved child's manifests are its WorkItem's: later works find the files by name (R-14-16)."""
        for child in self.by_group.values():
            view = self.engine.board.views[child.work_item_id]
            if view.state == "verified":
                view.artifacts = child.manifests

    def _of(self, work_item_id: str) -> list[Child]:
        return [child for child in self.by_group.values() if child.work_item_id == work_item_id]

    def _newest(self, work_item_id: str) -> Child | None:
        children = self._of(work_item_id)
        return children[-1] if children else None

    # --- one promoted work --------------------------------------------------------------------------------------------

    def look_at(self, instance: Instance, instances: Mapping[str, Instance], view: WorkView, plan: Plan) -> None:
        """Do what a work with a plan of its own needs next."""
        child = self._newest(view.work_item_id)
        if child is None:
            if self.engine.placing.startable(view):
                self._promote(instance, view, plan)
            return
        self._pass_up(child)
        self._pass_down(child)
        self._pass_retries(child)
        self._hand_in(child, self.engine.graph.results(instance, instances))
        state = child.board.state
        if state == "awaiting_approval":
            self._review(child, view)
        elif state in _OVER and view.state == "blocked":
            if self.engine.board.retry(view.work_item_id).sequence > self.engine.board.promoted[view.work_item_id]:
                self._promote(instance, view, plan)
            else:
                self.engine.say(
                    f"child {child.mission_id} {state}",
                    f"{child.local}: its child Mission is {state}: {child.ended}. "
                    f"`mwnode mission retry ID {child.local}` begins another one; else cancel the Mission.",
                )

    def _promote(self, instance: Instance, view: WorkView, plan: Plan) -> None:
        """Make the WorkItem a child Mission, with the Coordinator that its plan names (R-14-01, R-14-19)."""
        engine = self.engine
        key = f"promote {view.work_item_id}"
        if not engine.free(key):
            return
        named = plan.coordinator
        agent_id = None if named is None else called(engine.people, named)
        if agent_id is None or agent_id == engine.agent_id:
            engine.look_up()
            if engine.people:
                which = f"no other Agent is called {named!r}" if named else "its plan names no coordinator"
                engine.say(f"no coordinator {key}", f"{instance.local} cannot become a Mission of its own: {which}.")
            return
        mission_id, group_id = child_ids(view.work_item_id, len(self._of(view.work_item_id)))
        payload = plan.mission_payload(mission_id, group_id, agent_id, engine.clock.now(), child=True)
        payload["deadline"] = min(payload["deadline"], view.item.contract.deadline, key=parse)
        payload["parentWorkItemId"] = view.work_item_id
        engine.send(
            key,
            "mission.create_child",
            msgspec.convert(payload, MissionCreateChild),
            revision=engine.board.revision,
            extensions=plan.extensions,
        )
        engine.note("promote", work=instance.local, missionId=mission_id, coordinator=agent_id)

    def _review(self, child: Child, view: WorkView) -> None:
        """Fetch what was submitted, and approve it or say what is missing (R-14-14)."""
        engine, board = self.engine, child.board
        key = f"decide {child.mission_id}"
        mission = board.mission
        if mission is None or not engine.free(key):
            return
        if child.checked is None:
            fetch = f"check {child.mission_id}"
            if engine.free(fetch):
                engine.wait(fetch, 60.0)
                engine.emit(Check(engine.board.group_id, child.mission_id, board.submitted))
            return
        fault = _fault(child, view)
        if fault is None and mission.approval_policy.final_human_approval and not board.root_approved:
            return  # the human at the root decides first (R-14-15); `mwnode waiting` asks for it
        decision = "approved" if fault is None else "changes_requested"
        comments = "every Artifact and deliverable is there" if fault is None else fault
        approval = engine.papers.child_approval(mission, board.submitted_revision, board.submitted, decision, comments)
        if fault is None:
            engine.send(key, "mission.approve", MissionApprove(approval=approval), revision=board.revision, board=board)
        else:
            changes = MissionRequestChanges(approval=approval, feedback=fault)
            engine.send(key, "mission.request_changes", changes, revision=board.revision, board=board)
        engine.note("child_decided", work=child.local, missionId=child.mission_id, decision=decision)

    def _hand_in(self, child: Child, files: Mapping[str, str]) -> None:
        """Forward the results that the work depends on to the child's Group, and say what they are called there."""
        engine, board = self.engine, child.board
        if not files or board.state != "active" or board.handed == files:
            return
        lacking = [one for one in files.values() if (one, board.group_id) not in engine.board.forwarded]
        for content_hash in dict.fromkeys(lacking):
            key = f"forward {board.group_id} {content_hash}"
            if engine.free(key):
                payload = ArtifactForward(
                    artifact_hash=content_hash, to_group_id=board.group_id, reason=f"input of {child.local}"
                )
                engine.send(key, f"{CORE}.artifact_forward", payload)
        key = f"hand in {child.mission_id}"
        if not lacking and engine.free(key):
            block = DataBlock(schema=INPUTS_SCHEMA, data={"files": dict(files)})
            message = MessagePost(
                message_id=engine.papers.new_id(),
                conversation_id=mission_conversation_id(board.group_id),
                content=(block,),
                announcement=True,
            )
            engine.send(key, "message.post", message, board=board)

    # --- words --------------------------------------------------------------------------------------------------------

    def _asked(self, child: Child) -> list[tuple[str, str]]:
        """Identifier and text of every Message in which the child's Coordinator turned to its owner."""
        board, found = child.board, []
        for message in board.messages:
            mentions = () if message.mentions is UNSET else message.mentions
            if message.author.id == board.coordinator_id and board.owner in mentions:
                texts = [getattr(block, "text", "") for block in message.content]
                text = " ".join(text for text in texts if text)
                found.append((message.message_id, f"{child.local}: {text}"[:4000]))
        return found

    def _pass_up(self, child: Child) -> None:
        """What a child's Coordinator asks of its owner is asked of the human (R-14-21)."""
        for message_id, text in self._asked(child):
            self.engine.say(f"passed up {message_id}", text)

    def _pass_down(self, child: Child) -> None:
        """What the human answers is told to the child that asked."""
        engine, board = self.engine, self.engine.board
        if child.board.state != "active":
            return
        asked = {text for _, text in self._asked(child)}
        since = [
            board.message_sequences[message.message_id]
            for message in board.messages
            if message.author.id == engine.agent_id and {getattr(one, "text", "") for one in message.content} & asked
        ]
        told = {one for message in child.board.messages for one in _repeated(message.content)}
        for message in board.messages:
            answers = since and board.message_sequences[message.message_id] > min(since)
            key = f"pass down {child.mission_id} {message.message_id}"
            if not answers or message.author != board.owner or message.message_id in told or not engine.free(key):
                continue
            self._repeat(key, message, child)

    def _pass_retries(self, child: Child) -> None:
        """The human at the root asks for another try of work in a child, whose Coordinator heeds its own owner only."""
        if child.board.state != "active":
            return
        told = {one for message in child.board.messages for one in _repeated(message.content)}
        for message in self.engine.board.messages:
            key = f"pass down {child.mission_id} {message.message_id}"
            if message.author != self.engine.board.owner or message.message_id in told:
                continue
            if child.mission_id in _way_of_retry(message.content) and self.engine.free(key):
                self._repeat(key, message, child)

    def _repeat(self, key: str, message: Message, child: Child) -> None:
        """Say in a child's Group, as its owner, what was said in ours."""
        repeats = DataBlock(schema=PASSED_ON_SCHEMA, data={"messageId": message.message_id})
        payload = MessagePost(
            message_id=self.engine.papers.new_id(),
            conversation_id=mission_conversation_id(child.board.group_id),
            content=(*message.content, repeats),
            announcement=True,
        )
        self.engine.send(key, "message.post", payload, board=child.board)


def _way_of_retry(content: Sequence[object]) -> tuple[str, ...]:
    """The Missions, from the outermost child on, by which a wish to have work tried again reaches its Coordinator."""
    for block in content:
        if isinstance(block, DataBlock) and block.schema == RETRY_SCHEMA and isinstance(block.data, Mapping):
            through = block.data.get("through", ())
            return tuple(str(one) for one in through) if isinstance(through, list | tuple) else ()
    return ()


def _repeated(content: Sequence[object]) -> list[str]:
    return [
        str(block.data.get("messageId"))
        for block in content
        if isinstance(block, DataBlock) and block.schema == PASSED_ON_SCHEMA and isinstance(block.data, Mapping)
    ]


def _fault(child: Child, view: WorkView) -> str | None:
    """What keeps a child's result from being the parent WorkItem's: damaged bytes, or a deliverable that is missing."""
    checked, adopted = child.checked or {}, list(_adopted(child))
    passed_on = {one for work in adopted for one in _results(work)}
    for content_hash in child.board.submitted:
        result = checked.get(content_hash)
        if result is None or (content_hash not in child.manifests and content_hash not in passed_on):
            return f"{content_hash} was never published"
        if result.fault is not None:
            return f"{content_hash}: {result.fault}"
    submitted = [child.manifests[one] for one in child.board.submitted if one in child.manifests]
    kinds = {(one.media_type, one.schema_uri) for one in submitted}
    kinds |= {(one.media_type, one.schema) for work in adopted for one in work.item.contract.required_deliverables}
    for deliverable in view.item.contract.required_deliverables:
        if (deliverable.media_type, deliverable.schema) not in kinds:
            wanted = f"{deliverable.media_type}, {deliverable.schema}"
            return f"no submitted Artifact is the deliverable {deliverable.deliverable_id} ({wanted})"
    return None


def _adopted(child: Child) -> Iterator[WorkView]:
    """Works of a child that were Missions of their own, and whose results it submits: what they hold was published in
    Groups that the child's owner does not read, and looked through by the child's Coordinator (R-14-14, R-14-16)."""
    submitted = set(child.board.submitted)
    for work in child.board.views.values():
        promoted = work.work_item_id in child.board.promoted and work.state == "verified"
        if promoted and submitted.issuperset(_results(work)):
            yield work


def _results(work: WorkView) -> tuple[str, ...]:
    return () if work.item.submission is UNSET else work.item.submission.artifact_hashes
