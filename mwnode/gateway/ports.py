"""What the gateway asks of the node behind it, and what it answers with. The node implements ``Authority``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol, TypeVar

from msgspec import Struct

from mwnode.authority.policy import Policy
from mwnode.protocol.documents import Actor
from mwnode.protocol.errors import Rejection
from mwnode.protocol.limits import Limits
from mwnode.protocol.ports import Clock, Entropy
from mwnode.store.artifacts import Artifacts
from mwnode.store.commit import CommittedEvent, Outcome
from mwnode.store.doctor import Reader, Space
from mwnode.store.port import ReadTransaction, WriteTransaction
from mwnode.trust.registry import Registry
from mwnode.trust.verification import Failure

T = TypeVar("T")


class Origin(Struct, frozen=True, kw_only=True):
    """Where a Command came from. ``agent`` is who authenticated on the WebSocket; ``bearer`` who sent a bearer token.

    Over a WebSocket the Command's actor must be ``agent``, before anything is looked up (decision A28). Over HTTP a
    duplicate outside the freshness window is answered only to its own ``bearer``.
    """

    transport: Literal["ws", "http"]
    agent: Actor | None = None
    session_epoch: int | None = None
    key_id: str | None = None
    bearer: Actor | None = None


class SessionGrant(Struct, frozen=True):
    """A newly issued Session Epoch; every lower one of the Agent is fenced from now on (R-6.3-06)."""

    session_epoch: int


Reply = Callable[[Outcome | Failure], None]
"""Takes what became of a Command: accepted, refused by the authority, or failed in verification."""
Listener = Callable[[Sequence[CommittedEvent]], None]
"""Takes the Events of one durable batch, in commit order."""


Meter = Callable[[float, int], None]
"""Takes of each durable batch how many seconds it took and how many Commands were in it."""


class Tokens(Protocol):
    """Signed claims that this node made. Only the signature is looked at here; the caller judges the claims."""

    def issue(self, claims: Mapping[str, Any]) -> str:
        """``base64url(JCS(claims)).base64url(signature)`` under the node's authority key (decision B2)."""

    def claims(self, token: str) -> dict[str, Any] | None:
        """The claims of a token of this node, or ``None`` for anything else."""


class Authority(Protocol):
    """The node as the gateway sees it. Every method may be called from any thread; none of them blocks on the disk
    except ``read``, which costs one short snapshot."""

    @property
    def organization_id(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def registry(self) -> Registry:
        """The Registry at its present revision."""

    @property
    def tokens(self) -> Tokens: ...

    @property
    def artifacts(self) -> Artifacts: ...

    def submit(self, raw: bytes, origin: Origin, reply: Reply) -> None:
        """Hand over the exact bytes of one Command. ``reply`` is called once, from another thread, after the commit."""

    def open_session(self, agent_id: str, key_id: str) -> Future[SessionGrant | Rejection]:
        """Issue the Agent's next Session Epoch, durably (R-6.3-05)."""

    def snapshots(self, group_id: str, *, live: bool = False) -> list[bytes]:
        """The Group's signed snapshots as canonical bytes, oldest first: one when its Mission has ended, or with
        ``live``, made now if need be (decision F28, reading 31). Waits for the disk."""

    def read(self) -> AbstractContextManager[ReadTransaction]:
        """A snapshot of the store, for a short while."""

    def call(self, work: Callable[[WriteTransaction], T]) -> Future[T]:
        """Run something in the writer, within its next batch."""

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` from the writer thread with every durable batch, in commit order."""

    def remove_listener(self, listener: Listener) -> None: ...

    def meter(self, meter: Meter) -> None:
        """Have ``meter`` told of each durable batch, from the writer thread."""

    def file(self) -> tuple[Space, list[Reader]]:
        """Where the bytes of the file are, and who reads which state of it. Waits for the disk."""
