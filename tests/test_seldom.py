"""Lines that others can cause at will."""

from __future__ import annotations

import logging

import pytest

from mwnode.seldom import KINDS_MAX, Seldom


def test_a_few_lines_of_a_kind_and_how_many_there_were_besides(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    time = [0.0]
    seldom = Seldom(logging.getLogger("test"), lambda: time[0], burst=2, seconds=10)
    for number in range(7):
        seldom.log(logging.INFO, "a", "number %d", number)
    seldom.log(logging.WARNING, "b", "other")
    assert [record.getMessage() for record in caplog.records] == ["number 0", "number 1", "other"]
    caplog.clear()
    time[0] = 10.0
    seldom.log(logging.INFO, "a", "number %d", 7)
    seldom.log(logging.INFO, "b", "other")
    assert [record.getMessage() for record in caplog.records] == ["number 7 (and 5 like it before)", "other"]


def test_kinds_are_bounded_too() -> None:
    time = [0.0]
    seldom = Seldom(logging.getLogger("test"), lambda: time[0], seconds=10)
    said = sum(seldom.left_out(f"address {number}") is not None for number in range(3 * KINDS_MAX))
    assert said == KINDS_MAX + 1
    time[0] = 20.0
    assert seldom.left_out("new") == 0
