"""What the Worker's engine asks of its shell, and what an executor may report. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from mwnode.protocol.commands import Checkpoint, Payload
from mwnode.protocol.documents import WorkContract


class Send(Struct, frozen=True):
    """Send one Command; answer with ``WorkerEngine.answered`` or ``WorkerEngine.refused`` under the same ticket."""

    ticket: int
    kind: str
    payload: Payload
    group_id: str
    work_item_id: str
    expected_revision: int | None = None
    action_id: str | None = None
    """Given where a buffered Command is reconciled: it keeps its Action ID."""
    correlation_id: str | None = None
    extensions: Mapping[str, Any] | None = None


class Remember(Struct, frozen=True):
    """Keep this of a run over a restart."""

    kept: Any


class Forget(Struct, frozen=True):
    """The run is over: nothing of it has to be kept."""

    work_item_id: str
    epoch: int


class Buffer(Struct, frozen=True):
    """Keep this Command, signed while offline, until it has been reconciled."""

    number: int
    work_item_id: str
    raw: bytes


class Unbuffer(Struct, frozen=True):
    """The buffered Command was reconciled; or, with a reason, it never will be and is kept aside for audit."""

    number: int
    raw: bytes
    refused: str | None = None


class Assignment(Struct, frozen=True, kw_only=True):
    """Everything one run of an executor gets to see (R-11.1-14): its own WorkItem and nothing else."""

    run_id: str
    group_id: str
    mission_id: str
    work_item_id: str
    ownership_epoch: int
    contract: WorkContract
    attempt: int
    idempotency_key: str
    context_package_id: str | None
    checkpoint: Checkpoint | None
    wall_seconds_max: float | None
    """Seconds after which the run is ended."""


class Launch(Struct, frozen=True):
    """Prepare the slot (inputs, context, Capability Token) and run the executor."""

    assignment: Assignment
    token: Mapping[str, Any] | None = None
    """What to ask the authorization service for, before the executor begins."""


class FetchToken(Struct, frozen=True):
    """Fetch a Capability Token into a run's slot; answer with ``Capabilities.granted`` or ``Capabilities.refused``."""

    run_id: str
    request: Mapping[str, Any]


class Revoke(Struct, frozen=True):
    """The right that a run's Capability Token stands for is over: remove it from the slot."""

    run_id: str


class AskToStop(Struct, frozen=True):
    """Ask the executor for a checkpoint and an end (SIGTERM); after ``grace_seconds`` it is ended."""

    run_id: str
    grace_seconds: float


class Kill(Struct, frozen=True):
    """End the executor and everything it started, now."""

    run_id: str
    reason: str


class Collect(Struct, frozen=True):
    """Upload what the run left under ``outputs/``; answer with ``WorkerEngine.collected``."""

    run_id: str
    contract: WorkContract
    made: tuple[tuple[str, bytes], ...] = ()
    """Files that the Worker itself adds under ``outputs/`` first: path and content."""


class SaveState(Struct, frozen=True):
    """Upload a checkpoint's state file, named relative to the slot; answer with ``WorkerEngine.saved``."""

    run_id: str
    path: str


class Discard(Struct, frozen=True):
    """The run is over: its slot directory may go, or is kept aside when its result was not accepted."""

    run_id: str
    keep: bool


class Note(Struct, frozen=True):
    """A line for the log."""

    event: str
    details: Mapping[str, Any]


Effect = (
    Send
    | Launch
    | FetchToken
    | Revoke
    | AskToStop
    | Kill
    | Collect
    | SaveState
    | Discard
    | Note
    | Remember
    | Forget
    | Buffer
    | Unbuffer
)


class Output(Struct, frozen=True):
    """One uploaded deliverable."""

    deliverable_id: str
    path: str
    content_hash: str
    size_bytes: int
    uri: str
    media_type: str
    schema: str


class Exit(Struct, frozen=True):
    """How a run ended. ``status`` is the exit status, negative for a signal; ``error`` where there was no process.

    Times are seconds of wall clock and of processor.
    """

    status: int
    wall_seconds: float
    compute_seconds: float
    error: str | None = None
    tail: str = ""
    """The last lines of the executor's standard error, for the failure report."""
