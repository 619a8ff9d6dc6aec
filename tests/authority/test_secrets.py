"""Texts that look like tokens of the node."""

from __future__ import annotations

from mwnode.authority.secrets import CANDIDATES_MAX, token_shaped


def test_a_document_full_of_lookalikes_costs_a_bounded_number_of_verifications() -> None:
    document = b" ".join(b"eyJ%d.%b" % (number, b"A" * 86) for number in range(CANDIDATES_MAX + 50))
    assert len(list(token_shaped(document))) == CANDIDATES_MAX
