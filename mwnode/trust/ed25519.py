"""Ed25519 as the protocol wants it: pure RFC 8032, every point proven, nothing reduced, the identity allowed as R.

libsodium's verification refuses exactly what the protocol refuses, once the public key is proven to be a point of the
prime-order subgroup, with one exception: it also refuses R = identity, which the protocol allows (R-6.4-15). So its
answer yes is final, and its answer no is looked at again for that one case.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from enum import StrEnum

from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # PyNaCl's compiled half, which has no stubs
from nacl.bindings import (
    crypto_core_ed25519_is_valid_point,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_base_noclamp,
    crypto_scalarmult_ed25519_noclamp,
    crypto_sign,
    crypto_sign_seed_keypair,
)

GROUP_ORDER = 2**252 + 27_742_317_777_372_353_535_851_937_790_883_648_493
"""L, the order of the prime-order subgroup."""
IDENTITY = b"\x01" + bytes(31)
"""The canonical encoding of the neutral point."""
KEY_BYTES = 32
SIGNATURE_BYTES = 64
_ORDER_BYTES = GROUP_ORDER.to_bytes(32, "little")
_NULL = ffi.NULL
_BASE64URL = re.compile(r"[A-Za-z0-9_-]*\Z")


class Defect(StrEnum):
    """What is wrong with a signature. The first two belong to stage 3, the last to stage 6."""

    POINT = "signature-r-not-in-prime-order-subgroup"
    SCALAR = "signature-s-out-of-range"
    EQUATION = "signature-mismatch"


def encode_base64url(data: bytes) -> str:
    """Base64url without padding (RFC 4648)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def decode_base64url(text: str) -> bytes:
    """The bytes of a canonical base64url text. Raises ValueError otherwise (R-2-11)."""
    if len(text) % 4 == 1 or _BASE64URL.match(text) is None:
        raise ValueError("not base64url without padding")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if encode_base64url(data) != text:
        raise ValueError("not canonical base64url: its unused bits are not zero")
    return data


_TO_STANDARD = bytes.maketrans(b"-_+/", b"+/!!")
"""From the alphabet of base64url to that of base64; the characters that only the latter has become wrong ones."""
_LAST_CHARACTERS = "AQgw"
_SIGNATURE_CHARACTERS = 86


def decode_signature(text: str) -> bytes | None:
    """The 64 bytes of a signature's canonical base64url text, or None.

    They are 86 characters, of which the last one leaves four bits unused: zero in the canonical text (R-2-11).
    """
    if len(text) != _SIGNATURE_CHARACTERS or text[-1] not in _LAST_CHARACTERS:
        return None
    try:
        return binascii.a2b_base64(text.encode("ascii").translate(_TO_STANDARD) + b"==", strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def prove_point(point: bytes) -> bool:
    """Whether 32 bytes are the canonical encoding of a point of the prime-order subgroup other than the identity.

    This is the whole test of a public key (R-6.4-20, R-6.4-21); it costs about as much as a verification.
    """
    return len(point) == KEY_BYTES and bool(crypto_core_ed25519_is_valid_point(point))


def scalar_in_range(scalar: bytes) -> bool:
    """Whether 32 little-endian bytes are below L; larger ones are never reduced (R-6.4-16)."""
    return scalar[::-1] < _ORDER_BYTES[::-1]


def public_key(seed: bytes) -> bytes:
    """The 32-byte public key of a 32-byte seed."""
    return crypto_sign_seed_keypair(seed)[0]


def sign(seed: bytes, public: bytes, message: bytes) -> bytes:
    """The 64-byte signature of a message."""
    return crypto_sign(message, seed + public)[:SIGNATURE_BYTES]


def sign_all(seed: bytes, public: bytes, messages: Sequence[bytes]) -> list[bytes]:
    """As :func:`sign` for each message, in order, without a copy of each."""
    secret = seed + public
    signed = ffi.new("unsigned char[]", SIGNATURE_BYTES + max(map(len, messages), default=0))
    signature = ffi.buffer(signed, SIGNATURE_BYTES)
    made: list[bytes] = []
    for message in messages:
        if lib.crypto_sign(signed, _NULL, message, len(message), secret) != 0:
            raise RuntimeError("libsodium could not sign")
        made.append(signature[:])
    return made


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether [S]B = R + [k]A with a canonical R of the prime-order subgroup or identity and S < L.

    ``public`` must have passed :func:`prove_point`; ``signature`` must have 64 bytes. Proves stages 3 and 6 at once.
    """
    signed = signature + message
    # What `nacl.bindings.crypto_sign_open` calls, without its copies of the message.
    if lib.crypto_sign_open(_NULL, _NULL, signed, len(signed), public) == 0:
        return True
    return signature[:32] == IDENTITY and _verify_identity(public, message, signature)


def _verify_identity(public: bytes, message: bytes, signature: bytes) -> bool:
    """The equation for R = identity: [S]B = [k]A."""
    scalar = signature[32:]
    if not scalar_in_range(scalar):
        return False
    challenge = crypto_core_ed25519_scalar_reduce(hashlib.sha512(signature[:32] + public + message).digest())
    if not any(scalar) or not any(challenge):
        # libsodium does not multiply by zero; both sides are the identity only together.
        return not any(scalar) and not any(challenge)
    return crypto_scalarmult_ed25519_base_noclamp(scalar) == crypto_scalarmult_ed25519_noclamp(challenge, public)


def defect_of_encoding(signature: bytes) -> Defect | None:
    """What stage 3 finds wrong with a 64-byte signature, before any key is known (R-6.4-15, R-6.4-16)."""
    if not scalar_in_range(signature[32:]):
        return Defect.SCALAR
    if signature[:32] != IDENTITY and not prove_point(signature[:32]):
        return Defect.POINT
    return None


def classify(public: bytes, message: bytes, signature: bytes) -> Defect | None:
    """The slow path: why :func:`verify` says no, or None when it says yes."""
    return defect_of_encoding(signature) or (None if verify(public, message, signature) else Defect.EQUATION)
