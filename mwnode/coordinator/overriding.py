"""What a limit of policy stops: the MissionOwner is asked for a Cooperation Override Grant, for exactly that Command.

A Grant binds the Action ID, so that is chosen before anybody is asked, the same in every run of every Coordinator; with
the Grant the Command goes out under it (R-15.1-12, R-20-07, R-20-08). A limit that time lifts is waited for instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from msgspec import Struct

from mwnode.coordinator.board import Board
from mwnode.protocol.commands import MessagePost
from mwnode.protocol.documents import DataBlock, TextBlock
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.events import CooperationOverrideGrant
from mwnode.protocol.identifiers import OVERRIDE_SCHEMA, mission_conversation_id
from mwnode.protocol.instants import parse
from mwnode.protocol.ports import Clock


class Passed(Struct, frozen=True):
    """Under what a Command goes out that a limit would stop."""

    action_id: str
    grant_id: str


class Overriding:
    """The overrides of one Mission: which Commands need one, and which have one."""

    def __init__(self, board: Board, clock: Clock, new_id: Callable[[], str]) -> None:
        self._board = board
        self._clock = clock
        self._new_id = new_id
        self._unfit: set[str] = set()
        """Grants that were cited already."""

    def passed(self, key: str, kind: str) -> Passed | None:
        """The Grant that the next Command of this key is to cite, if there is one to be used."""
        for number in range(self._board.overrides_of(kind) + 1):
            action_id = self._action_id(key, number)
            grant = self._board.overrides.get(action_id)
            if grant is not None and self._usable(grant):
                return Passed(action_id, grant.grant_id)
        return None

    def used(self, passed: Passed | None) -> None:
        """A Command was answered that cited a Grant: whatever the answer, that Grant is of no more use."""
        if passed is not None:
            self._unfit.add(passed.grant_id)

    def stops(self, error: MissionWeaveError) -> bool:
        """Whether a limit has refused a Command that time alone will not let pass."""
        named = isinstance((error.rejection.details or {}).get("policyName"), str)
        return error.code is ErrorCode.RATE_LIMITED and named and error.rejection.retry_after_ms is None

    def question(self, key: str, kind: str, error: MissionWeaveError) -> MessagePost | None:
        """What to ask the MissionOwner after a refusal; ``None`` when no Grant would help, or one is asked for."""
        if not self.stops(error):
            return None
        policy_name = (error.rejection.details or {})["policyName"]
        board = self._board
        if board.owner is None or board.mission is None:
            return None
        number = 0
        while self._action_id(key, number) in board.overrides:
            number += 1  # that one was used, has expired, or did not fit
        action_id = self._action_id(key, number)
        if action_id in board.asked_overrides:
            return None
        reason = f"{key}: {error.message.partition(';')[0]}"[:4000]
        text = (
            f"{reason}. It needs a Cooperation Override Grant for this one Command: "
            f"`mwnode mission override {board.mission.mission_id}` shows it and grants it; else cancel the Mission."
        )
        data = {"policyName": policy_name, "targetCommandKind": kind, "targetActionId": action_id, "reason": reason}
        return MessagePost(
            message_id=self._new_id(),
            conversation_id=mission_conversation_id(board.group_id),
            content=(TextBlock(text=text[:10_000]), DataBlock(schema=OVERRIDE_SCHEMA, data=data)),
            mentions=(board.owner,),
            announcement=True,
        )

    def _usable(self, grant: CooperationOverrideGrant) -> bool:
        return grant.grant_id not in self._unfit and parse(grant.expires_at) > self._clock.now()

    def _action_id(self, key: str, number: int) -> str:
        digest = hashlib.sha256(f"override\0{self._board.group_id}\0{key}\0{number}".encode()).hexdigest()[:32]
        return f"urn:mwnode:action:{digest}"
