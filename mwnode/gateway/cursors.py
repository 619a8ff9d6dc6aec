"""ACK: durable Cursors, never beyond the head, never back (decision A10). Shell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from mwnode.authority.access import sight_of
from mwnode.gateway.ports import Authority
from mwnode.gateway.replies import FAULTS_MAX, TOO_MANY_FAULTS
from mwnode.protocol import frames
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import ErrorCode, Rejection
from mwnode.seldom import Seldom
from mwnode.store.port import WriteTransaction

logger = logging.getLogger(__name__)


class Cursors:
    """Takes acknowledgements and writes them, one write at a time for however many came meanwhile."""

    def __init__(self, authority: Authority, post: Callable[[Callable[[], None]], None]) -> None:
        """``post`` brings a call back to the event loop."""
        self._authority = authority
        self._post = post
        self._seldom = Seldom(logger, authority.clock.monotonic)
        self._unsaved: dict[tuple[str, str], int] = {}
        self._saving: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether anything is not durable yet."""
        return bool(self._unsaved) or self._saving is not None

    def acknowledge(self, actor: Actor, ack: frames.Ack) -> list[Rejection]:
        """Take an ACK; what is wrong with its entries, each with the Group as the client named it (R-19-03)."""
        faults: list[Rejection] = []
        now = self._authority.clock.now()
        with self._authority.read() as view:
            for entry in ack.acknowledgements:
                if len(faults) == FAULTS_MAX:
                    faults.append(TOO_MANY_FAULTS)
                    break
                fault = sight_of(view, actor, entry.group_id, now)
                if not isinstance(fault, Rejection):
                    if entry.sequence <= view.head(entry.group_id):
                        key = (actor.id, entry.group_id)
                        self._unsaved[key] = max(entry.sequence, self._unsaved.get(key, 0))
                        continue
                    text = "the Cursor lies beyond the newest Event of the Group"
                    fault = Rejection(ErrorCode.INVALID_COMMAND, text, "R-16-04")
                faults.append(Rejection(fault.code, fault.message, fault.rule, {"groupId": entry.group_id}))
        self._save()
        return faults

    def _save(self) -> None:
        if self._saving is not None or not self._unsaved:
            return
        cursors, self._unsaved = self._unsaved, {}

        def write(txn: WriteTransaction) -> None:
            for (agent_id, group_id), sequence in cursors.items():
                txn.put_cursor(agent_id, group_id, sequence)

        self._saving = self._authority.call(write)
        self._saving.add_done_callback(lambda done: self._post(lambda: self._saved(done)))

    def _saved(self, done: Future[None]) -> None:
        self._saving = None
        failure = done.exception()
        if failure is not None:
            # A Cursor that was not kept only means that more is sent again after a reconnect.
            self._seldom.log(logging.ERROR, "cursors", "Cursors could not be saved: %s", failure)
        self._save()
