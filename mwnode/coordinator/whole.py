"""What each part of a Mission's engine may ask of the whole: they need not know the engine itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mwnode.client.fold import WorkView
from mwnode.coordinator.board import Board
from mwnode.coordinator.candidates import Candidate
from mwnode.coordinator.effects import Effect
from mwnode.coordinator.graph import Graph, Instance
from mwnode.coordinator.papers import CoordinatorPapers
from mwnode.coordinator.plan import Plan
from mwnode.protocol.commands import Payload
from mwnode.protocol.documents import WorkContract
from mwnode.protocol.ports import Clock


class Places(Protocol):
    """Who offers WorkItems."""

    def place(
        self,
        instance: Instance,
        instances: Mapping[str, Instance],
        view: WorkView,
        *,
        excluded: Sequence[str] = (),
    ) -> None:
        """Offer the WorkItem, if it needs somebody now."""

    def startable(self, view: WorkView) -> bool:
        """Whether everything that the WorkItem depends on is verified."""

    def is_final(self, view: WorkView) -> bool:
        """Whether a failed WorkItem is not tried again."""


class Clarifies(Protocol):
    """Who settles questions about contracts."""

    def is_due(self, view: WorkView) -> bool:
        """Whether a corrected contract can be offered now."""

    def holds(self, local: str, view: WorkView) -> bool:
        """Whether the WorkItem is offered to nobody because a question about it is open."""

    def amended(self, view: WorkView, contract: WorkContract) -> WorkContract:
        """The contract with everything that questions about it have led to."""


class Whole(Protocol):
    """One Mission's engine, as its parts see it."""

    @property
    def agent_id(self) -> str:
        """Whose engine it is."""

    @property
    def plan(self) -> Plan:
        """What is carried out."""

    @property
    def papers(self) -> CoordinatorPapers:
        """Makes and signs documents."""

    @property
    def clock(self) -> Clock:
        """The time."""

    @property
    def board(self) -> Board:
        """What the Group's Events told."""

    @property
    def graph(self) -> Graph:
        """The plan over the board."""

    @property
    def people(self) -> Sequence[Candidate]:
        """Who is registered."""

    @property
    def inputs(self) -> Mapping[str, dict[str, str]]:
        """Uploaded input files by local name."""

    @property
    def placing(self) -> Places:
        """Who offers WorkItems."""

    @property
    def clarifying(self) -> Clarifies:
        """Who settles questions."""

    def emit(self, effect: Effect) -> None:
        """Ask the shell for something."""

    def note(self, event: str, **details: Any) -> None:
        """Have a line logged."""

    def free(self, key: str) -> bool:
        """Whether nothing of this key is under way, or waits after a failure."""

    def wait(self, key: str, seconds: float) -> None:
        """Do nothing of this key for so many seconds."""

    def send(
        self,
        key: str,
        kind: str,
        payload: Payload,
        *,
        view: WorkView | None = None,
        revision: int | None = None,
        board: Board | None = None,
        extensions: Mapping[str, Any] | None = None,
    ) -> None:
        """Ask for one Command."""

    def say(self, key: str, text: str) -> None:
        """Tell the MissionOwner once."""

    def authorize(
        self,
        instance: Instance,
        contract: WorkContract,
        *,
        replaces: str | None = None,
        proposal_id: str | None = None,
        parent: str | None = None,
    ) -> None:
        """Ask for the WorkItem of an instance."""

    def have_inputs(self, local: str) -> bool:
        """Whether a work's input files are stored; asks for it otherwise."""

    def further(self, instance: Instance, instances: Mapping[str, Instance], view: WorkView) -> None:
        """Bring a WorkItem one step on."""

    def elsewhere(self) -> Mapping[str, int]:
        """What this Coordinator has given to Agents in other Missions."""

    def look_up(self, seconds: float = 2.0) -> None:
        """Ask who is registered and present."""

    def advance(self) -> None:
        """Do whatever is to be done next."""
