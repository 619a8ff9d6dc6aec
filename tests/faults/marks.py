"""The mark ``reference_fault``: put on each test that the list of faults names, when it is collected."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS

TESTS = Path(__file__).resolve().parent.parent


@cache
def _by_test() -> dict[str, list[int]]:
    shown: dict[str, list[int]] = {}
    for fault in FAULTS:
        for name in fault.tests:
            shown.setdefault(name, []).append(fault.number)
    return shown


def faults_shown_by(name: str) -> list[int]:
    """The numbers of the faults that a test, named as in the list, shows to be absent."""
    return _by_test().get(name, [])


def name_of(item: pytest.Item) -> str:
    """The name of a collected test as the list spells it: file below ``tests/``, and function."""
    path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else item.path.name
    return f"{path}::{getattr(item, 'originalname', item.name)}"


def mark(item: pytest.Item) -> None:
    """Mark a collected test."""
    for number in faults_shown_by(name_of(item)):
        item.add_marker(pytest.mark.reference_fault(number))
