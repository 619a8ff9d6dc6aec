"""Sealed boxes: bytes that anybody can close for a key and only its private half opens. libsodium's format.

The key is an Ed25519 key like all others; its Curve25519 form is derived. The one-time secret is passed in, so that
this stays pure.
"""

from __future__ import annotations

import hashlib

from nacl.bindings import (
    crypto_box,
    crypto_box_seal_open,
    crypto_scalarmult_base,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import CryptoError

SECRET_BYTES = 32
_NONCE_BYTES = 24


class BoxFault(ValueError):
    """The box was sealed for another key, or its bytes were changed."""


def seal(public_key: bytes, message: bytes, one_time_secret: bytes) -> bytes:
    """Close ``message`` for the holder of an Ed25519 public key; ``one_time_secret`` is 32 fresh random bytes.

    ValueError for a public key that is no point.
    """
    if len(one_time_secret) != SECRET_BYTES:
        raise ValueError(f"a one-time secret has {SECRET_BYTES} bytes")
    try:
        receiver = crypto_sign_ed25519_pk_to_curve25519(public_key)
    except CryptoError as error:
        raise ValueError(f"this is no public key: {error}") from None
    sender = crypto_scalarmult_base(one_time_secret)
    nonce = hashlib.blake2b(sender + receiver, digest_size=_NONCE_BYTES).digest()
    return sender + crypto_box(message, nonce, receiver, one_time_secret)


def open_sealed(seed: bytes, sealed: bytes) -> bytes:
    """What was sealed for the key of that seed. BoxFault for anything else."""
    public, secret = crypto_sign_seed_keypair(seed)
    try:
        return crypto_box_seal_open(
            sealed, crypto_sign_ed25519_pk_to_curve25519(public), crypto_sign_ed25519_sk_to_curve25519(secret)
        )
    except (CryptoError, TypeError, ValueError) as error:
        raise BoxFault("this was not sealed for that key, or was changed") from error
