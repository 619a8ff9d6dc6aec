"""Idempotency keys."""

from __future__ import annotations

import pytest

from mwnode.worker.keys import attempt_key, idempotency_key

SAME = (3, "urn:example:mission", "urn:example:work", "execute")
OTHERS = {
    "epoch": (4, "urn:example:mission", "urn:example:work", "execute"),
    "mission": (3, "urn:example:mission2", "urn:example:work", "execute"),
    "work item": (3, "urn:example:mission", "urn:example:work2", "execute"),
    "operation": (3, "urn:example:mission", "urn:example:work", "publish"),
    "where one part ends": (3, "urn:example:missionu", "rn:example:work", "execute"),
}


@pytest.mark.req("R-16-08", "R-16-62")
def test_the_same_four_inputs_give_the_same_key() -> None:
    assert idempotency_key(*SAME) == idempotency_key(*SAME)
    # Written down, so that an upgrade which changes it, and so doubles side effects, does not go unnoticed.
    assert idempotency_key(*SAME) == "0df1482ca0f1c59da918ba9b463b7f101879e58894ef8c1b9edfa58d10834fbf"


@pytest.mark.req("R-16-08", "R-16-62")
@pytest.mark.parametrize("inputs", OTHERS.values(), ids=OTHERS.keys())
def test_any_other_input_gives_another_key(inputs: tuple[int, str, str, str]) -> None:
    assert idempotency_key(*inputs) != idempotency_key(*SAME)


@pytest.mark.req("R-11.4-09")
def test_attempt_keys_are_derived_from_the_executions_key() -> None:
    key = idempotency_key(*SAME)
    assert attempt_key(key, 1) == attempt_key(key, 1)
    assert len({key, attempt_key(key, 1), attempt_key(key, 2)}) == 3
    with pytest.raises(ValueError, match="from 1"):
        attempt_key(key, 0)
