"""The queue of the six stages: one order, one answer, whoever checks the equations."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mwnode.authority.request import Request
from mwnode.equations import EquationHelper
from mwnode.trust import ed25519
from mwnode.trust.verification import Failure
from mwnode.verifier import LONE_BYTES_MAX, Submission, Verifier
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.trust import makers

REGISTRY = makers.registry()


def command(number: int) -> bytes:
    """A Command of its own; every seventh has another's signature."""
    good = makers.signed("command", actionId=f"urn:example:action:{number}")
    if number % 7 == 3:
        good["signature"] = {**good["signature"], "value": makers.signed("command")["signature"]["value"]}
    return makers.raw(good)


COMMANDS = [command(number) for number in range(200)]


def outcome(verdict: Request | Failure) -> str:
    """The Action ID of a Command that verified, else why it did not."""
    return verdict.reason if isinstance(verdict, Failure) else verdict.verified.document.action_id  # type: ignore[union-attr]


EXPECTED = [
    ed25519.Defect.EQUATION.value if number % 7 == 3 else f"urn:example:action:{number}" for number in range(200)
]


class Answers:
    """What was delivered, in order; the first delivery may wait, so that others gather."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.threads: set[int] = set()
        self.open = threading.Event()
        self.open.set()

    def deliver(self, verdict: Request | Failure) -> None:
        assert self.open.wait(PATIENCE_SECONDS)
        self.outcomes.append(outcome(verdict))
        self.threads.add(threading.get_ident())

    def wait(self, count: int) -> None:
        wait_until(lambda: len(self.outcomes) >= count, lambda: f"{len(self.outcomes)} of {count} verdicts")


@contextmanager
def verifier(*, helped: bool, quiet: Callable[[], bool] = lambda: False) -> Iterator[Verifier]:
    made = Verifier(lambda: REGISTRY, helped=helped, quiet=quiet)
    try:
        yield made
    finally:
        made.close()


def pass_all(made: Verifier, answers: Answers) -> None:
    """Send all Commands at once and wait for the verdicts."""
    before = len(answers.outcomes)
    answers.open.clear()
    for raw in COMMANDS:
        assert made.submit(Submission(raw, answers.deliver))
    answers.open.set()
    answers.wait(before + len(COMMANDS))


def children() -> set[int]:
    """Processes that this one started and that still exist, dead ones that nobody has waited for among them."""
    own = Path(f"/proc/{os.getpid()}/task")
    return {int(pid) for task in own.iterdir() for pid in (task / "children").read_text().split()}


def state(pid: int) -> str | None:
    """A process's letter in the process table, or None when it is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return None


@contextmanager
def helper() -> Iterator[EquationHelper]:
    made = EquationHelper()
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not made.ready:
            assert not made.gone
            assert time.monotonic() < deadline
            time.sleep(0.005)
        yield made
    finally:
        made.close()


def equations(count: int) -> list[tuple[bytes, bytes, bytes]]:
    """Every third has another message."""
    seed = bytes(32)
    public = ed25519.public_key(seed)
    texts = [b"m" * (number * 300) for number in range(count)]
    return [
        (public, text + b"x" * (number % 3 == 1), ed25519.sign(seed, public, text)) for number, text in enumerate(texts)
    ]


@pytest.mark.parametrize("helped", [False, True])
def test_all_are_answered_once_and_in_order_with_or_without_a_helper(helped: bool) -> None:
    answers = Answers()
    with verifier(helped=helped) as made:
        for _ in range(3):
            pass_all(made, answers)
    assert answers.outcomes == EXPECTED * 3
    assert len(answers.threads) == 1


def test_a_helper_answers_as_we_would() -> None:
    asked = equations(300)
    expected = [ed25519.verify(*each) for each in asked]
    assert expected.count(False) == 100
    with helper() as made:
        for start in range(0, 300, 100):
            assert made.send(asked[start : start + 100])
        assert [held for _ in range(3) for held in made.receive(100) or []] == expected


def test_verdicts_stay_the_same_when_the_helper_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    answers = Answers()
    before = children()
    with verifier(helped=True) as made:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (made._helper is not None and made._helper.ready):
            pass_all(made, answers)
            assert time.monotonic() < deadline
        (pid,) = children() - before
        os.kill(pid, signal.SIGKILL)
        rounds = len(answers.outcomes) // len(COMMANDS)
        pass_all(made, answers)
        pass_all(made, answers)
        assert answers.outcomes == EXPECTED * (rounds + 2)
        assert made._helper is None
        assert children() == before, "it was waited for, and no other one was started"
        # After a pause there is another one.
        while not (made._helper is not None and made._helper.ready):
            pass_all(made, answers)
            assert time.monotonic() < deadline + PATIENCE_SECONDS
        pass_all(made, answers)
        assert answers.outcomes == EXPECTED * (len(answers.outcomes) // len(COMMANDS))
    assert "checks them itself" in caplog.text


def test_helpers_that_fail_soon_are_started_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    now, started = [1000.0], []

    def refuse() -> EquationHelper:
        started.append(now[0])
        raise OSError("no more processes")

    monkeypatch.setattr("mwnode.verifier.EquationHelper", refuse)
    monkeypatch.setattr("mwnode.verifier.time.monotonic", lambda: now[0])
    made = Verifier(lambda: REGISTRY, lambda: None, helped=True)
    for _ in range(20_000):
        assert made._ready_helper() is None
        now[0] += 0.1
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(started)]
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300, 300]
    made.close()


def test_a_helper_ends_with_whoever_asked_it() -> None:
    before = children()
    with helper() as made:
        (pid,) = children() - before
        assert made.send(equations(3))
    assert state(pid) is None, "neither running nor a zombie"
    assert not made.ready


def test_a_helper_that_gives_no_answer_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mwnode.equations.ANSWER_SECONDS", 0.2)
    before = children()
    with helper() as made:
        (pid,) = children() - before
        os.kill(pid, signal.SIGSTOP)
        assert made.send(equations(3))
        assert made.receive(3) is None
        assert made.gone
        assert state(pid) is None


def test_a_machine_that_starts_no_processes_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    answers = Answers()
    with verifier(helped=True) as made:
        pass_all(made, answers)
        assert made._helper is None
    assert answers.outcomes == EXPECTED


def test_a_lone_command_is_verified_by_its_bringer_and_no_other_is() -> None:
    answers = Answers()
    with verifier(helped=False, quiet=lambda: True) as made:
        wait_until(lambda: made._idle)
        made.submit(Submission(COMMANDS[0], answers.deliver))
        assert answers.outcomes == EXPECTED[:1]
        assert answers.threads == {threading.get_ident()}

        def and_another(verdict: Request | Failure) -> None:
            made.submit(Submission(COMMANDS[2], answers.deliver))
            answers.deliver(verdict)

        made.submit(Submission(COMMANDS[1], and_another))
        answers.wait(3)
        assert answers.outcomes == EXPECTED[:3], "what comes meanwhile waits for its turn"
        assert len(answers.threads) == 2
    large = makers.raw(makers.signed("command", payload={"text": "x" * LONE_BYTES_MAX}))
    for raw, quiet in ((large, True), (COMMANDS[0], False)):
        answers = Answers()
        with verifier(helped=False, quiet=lambda quiet=quiet: quiet) as made:  # type: ignore[misc]
            made.submit(Submission(raw, answers.deliver))
            answers.wait(1)
            assert answers.threads != {threading.get_ident()}


def test_what_was_submitted_is_answered_before_closing_ends() -> None:
    answers = Answers()
    with verifier(helped=True) as made:
        for raw in COMMANDS:
            made.submit(Submission(raw, answers.deliver))
    assert answers.outcomes == EXPECTED
    assert not made.submit(Submission(COMMANDS[0], answers.deliver))
