"""Commands that somebody waits for: what they were signed under, and when a refusal only means that time has passed.

A Command refused for an epoch of ours that moved on the way, or for freshness that ran out while the link was down, was
certainly not accepted: the receipt is looked up before either (reading 2). So it is made anew, under a new Action ID
(R-19-07, R-19-08). Every other refusal is the caller's to judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from mwnode.client.commands import RECEIPT_KINDS, signed_command
from mwnode.client.engine import ClientEngine, Pending
from mwnode.protocol.documents import Event
from mwnode.protocol.errors import ErrorCode, MissionWeaveError
from mwnode.protocol.identifiers import uuid7_urn
from mwnode.protocol.instants import parse
from mwnode.protocol.ports import Clock, Entropy
from mwnode.trust.keys import SigningKey

FRESHNESS_SECONDS = 300
"""Age from which a refused signature of ours may only mean that the Command had grown old on the way."""
BACKPRESSURE_SECONDS = 1.0


class Order(Struct, eq=False):
    """One Command to be done, over however many signatures and connections it takes."""

    kind: str
    payload: Mapping[str, Any] | Struct
    group_id: str
    envelope: dict[str, Any]
    answer: asyncio.Future[Event]
    membership_epoch: int | None
    """As the caller stated it; ``None`` has it looked up."""
    action_id: str = ""
    signed_session_epoch: int = 0
    signed_membership_epoch: int = 0
    signed_at: str = ""


class Orders:
    """The unanswered Commands of one client."""

    def __init__(
        self,
        key: SigningKey,
        engine: ClientEngine,
        clock: Clock,
        entropy: Entropy,
        *,
        until_live: Callable[[], Awaitable[None]],
        look_up_memberships: Callable[[], Awaitable[None]],
        wake: Callable[[], None],
    ) -> None:
        self._key = key
        self._engine = engine
        self._clock = clock
        self._entropy = entropy
        self._until_live = until_live
        self._look_up_memberships = look_up_memberships
        self._wake = wake
        self._orders: dict[str, Order] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, order: Order, action_id: str | None = None) -> Event:
        """Have a Command done; its receipt Event."""
        try:
            await self._place(order, action_id)
            return await order.answer
        finally:
            if self._orders.pop(order.action_id, None) is not None:
                self._engine.forget(order.action_id)

    def answered(self, action_id: str, event: Event) -> None:
        """The receipt has come."""
        order = self._orders.get(action_id)
        if order is not None and not order.answer.done():
            order.answer.set_result(event)

    def refused(self, action_id: str, error: MissionWeaveError) -> None:
        """The node has refused the Command."""
        order = self._orders.get(action_id)
        if order is None or order.answer.done():
            return
        if error.code is ErrorCode.BACKPRESSURE:
            # It was not taken: the same bytes go again (decision F13).
            wait = error.rejection.retry_after_ms
            self._spawn(order, self._send_again(order, BACKPRESSURE_SECONDS if wait is None else wait / 1000))
        elif self._outdated(order, error.code):
            self._spawn(order, self._renew(order, error))
        else:
            order.answer.set_exception(error)

    def unsent(self, action_id: str) -> None:
        """The Command never left: sign it under the new epoch. Nobody has seen its Action ID, so that stays."""
        order = self._orders.get(action_id)
        if order is not None and not order.answer.done():
            self._spawn(order, self._place(order, action_id))

    def fail(self, error: BaseException) -> None:
        """No answer will come any more."""
        for order in self._orders.values():
            if not order.answer.done():
                order.answer.set_exception(error)
        for task in tuple(self._tasks):
            task.cancel()

    async def _place(self, order: Order, action_id: str | None = None) -> None:
        """Sign the order's Command under the epochs of now, and hand it to the engine."""
        await self._until_live()
        epoch = order.membership_epoch
        if epoch is None:
            epoch = await self._membership_epoch(order.group_id)
        now = self._clock.now()
        self._orders.pop(order.action_id, None)
        order.action_id = action_id or uuid7_urn(now, self._entropy.random(10))
        order.signed_session_epoch = self._engine.session_epoch
        order.signed_membership_epoch = epoch
        order.signed_at = now.text()
        raw = signed_command(
            self._key,
            order.kind,
            order.payload,
            action_id=order.action_id,
            issued_at=order.signed_at,
            group_id=order.group_id,
            session_epoch=order.signed_session_epoch,
            membership_epoch=epoch,
            **order.envelope,
        )
        self._orders[order.action_id] = order
        self._engine.submit(Pending(order.action_id, raw, RECEIPT_KINDS.get(order.kind, order.kind)))
        self._wake()

    async def _membership_epoch(self, group_id: str) -> int:
        epochs = self._engine.membership_epochs
        if group_id not in epochs:
            await self._look_up_memberships()
        # Epoch 1 of a Group that nobody told us of: the node says whether there is such a Group for us.
        return epochs.get(group_id, 1)

    def _outdated(self, order: Order, code: ErrorCode) -> bool:
        """Whether the refusal can come from nothing but time passing between signing and arrival."""
        if code is ErrorCode.AUTH_STALE_SESSION:
            return order.signed_session_epoch != self._engine.session_epoch
        if code is ErrorCode.MEMBERSHIP_STALE:
            return order.membership_epoch is None
        if code is ErrorCode.AUTH_INVALID_SIGNATURE:
            age = self._clock.now().whole_microseconds() - parse(order.signed_at).whole_microseconds()
            return age >= FRESHNESS_SECONDS * 1_000_000
        return False

    async def _renew(self, order: Order, error: MissionWeaveError) -> None:
        if error.code is ErrorCode.MEMBERSHIP_STALE:
            if self._engine.membership_epochs.get(order.group_id) == order.signed_membership_epoch:
                del self._engine.membership_epochs[order.group_id]
            if await self._membership_epoch(order.group_id) == order.signed_membership_epoch:
                raise error
        await self._place(order)

    async def _send_again(self, order: Order, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._engine.again(order.action_id)
        self._wake()

    def _spawn(self, order: Order, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._tasks.discard(finished)
            failure = None if finished.cancelled() else finished.exception()
            if failure is not None and not order.answer.done():
                order.answer.set_exception(failure)

        task.add_done_callback(done)
