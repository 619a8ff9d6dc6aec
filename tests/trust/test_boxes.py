"""Sealed boxes: anybody closes, one opens."""

from __future__ import annotations

import pytest
from nacl.public import SealedBox
from nacl.signing import SigningKey as NaclKey

from mwnode.trust import boxes
from mwnode.trust.ed25519 import public_key

SEED, OTHER, SECRET = bytes(range(32)), bytes(32), bytes(range(100, 132))


def test_what_was_sealed_opens_with_its_key_alone() -> None:
    sealed = boxes.seal(public_key(SEED), b"why it was refused", SECRET)
    assert b"refused" not in sealed
    assert boxes.open_sealed(SEED, sealed) == b"why it was refused"
    with pytest.raises(boxes.BoxFault):
        boxes.open_sealed(OTHER, sealed)


@pytest.mark.parametrize("place", [0, 31, 32, 47, -1])
def test_a_changed_box_does_not_open(place: int) -> None:
    sealed = bytearray(boxes.seal(public_key(SEED), b"text", SECRET))
    sealed[place] ^= 1
    with pytest.raises(boxes.BoxFault):
        boxes.open_sealed(SEED, bytes(sealed))
    with pytest.raises(boxes.BoxFault):
        boxes.open_sealed(SEED, b"short")


def test_the_format_is_that_of_libsodium() -> None:
    key = NaclKey(SEED).to_curve25519_private_key()
    assert SealedBox(key).decrypt(boxes.seal(public_key(SEED), b"text", SECRET)) == b"text"
    assert boxes.open_sealed(SEED, SealedBox(key.public_key).encrypt(b"theirs")) == b"theirs"


def test_bad_keys_and_secrets_are_refused() -> None:
    with pytest.raises(ValueError, match="one-time secret"):
        boxes.seal(public_key(SEED), b"text", b"short")
    with pytest.raises(ValueError, match="no public key"):
        boxes.seal(b"\xff" * 32, b"text", SECRET)
