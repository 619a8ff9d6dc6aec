"""Ed25519 exactly as the protocol wants it, point by point."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from mwnode.trust import ed25519
from mwnode.trust.ed25519 import GROUP_ORDER, IDENTITY, Defect

P = 2**255 - 19
D = -121665 * pow(121666, P - 2, P) % P
BASE = bytes.fromhex("5866666666666666666666666666666666666666666666666666666666666666")
SEED = bytes(range(32))
PUBLIC = ed25519.public_key(SEED)
MESSAGE = b"what is signed"

# Curve arithmetic of its own, slow and plain, so that the tables below owe nothing to libsodium.
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    product = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + a[1] * b[0]) * pow(1 + product, P - 2, P) % P
    y = (a[1] * b[1] + a[0] * b[0]) * pow(1 - product, P - 2, P) % P
    return x, y


def times(scalar: int, point: Point) -> Point:
    result = NEUTRAL
    while scalar:
        if scalar & 1:
            result = add(result, point)
        point = add(point, point)
        scalar >>= 1
    return result


def decode(encoding: bytes) -> Point | None:
    """The point of an encoding; y is reduced and any sign bit of zero is taken, as careless decoders do."""
    number = int.from_bytes(encoding, "little")
    sign, y = number >> 255, (number & (2**255 - 1)) % P
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P:
        return None
    return (P - x if x & 1 != sign else x) % P, y


def encode(point: Point) -> bytes:
    return (point[1] | (point[0] & 1) << 255).to_bytes(32, "little")


def points_of_order_eight() -> list[Point]:
    """All eight points of the small subgroup, from any point of full order by multiplying with L."""
    y = 2
    while True:
        point = decode(y.to_bytes(32, "little"))
        if point is not None:
            generator = times(GROUP_ORDER, point)
            if times(4, generator) != NEUTRAL:
                return [times(number, generator) for number in range(8)]
        y += 1


SMALL = points_of_order_eight()
BASE_POINT = decode(BASE)
assert BASE_POINT is not None
MIXED = [encode(add(times(7, BASE_POINT), torsion)) for torsion in SMALL[1:]]
NOT_CANONICAL = {
    "y = p": P.to_bytes(32, "little"),
    "y = p + 1, the identity again": (P + 1).to_bytes(32, "little"),
    "the largest y": (2**255 - 1).to_bytes(32, "little"),
    "y = p with sign": (P | 1 << 255).to_bytes(32, "little"),
    "negative zero, y = 1": (1 | 1 << 255).to_bytes(32, "little"),
    "negative zero, y = -1": (P - 1 | 1 << 255).to_bytes(32, "little"),
}
OFF_CURVE = next(encoding for y in range(2, 50) if decode(encoding := y.to_bytes(32, "little")) is None)
BAD_POINTS = {
    **{f"order {number}": encode(point) for number, point in enumerate(SMALL) if number},
    **{f"mixed order {number}": encoding for number, encoding in enumerate(MIXED)},
    **NOT_CANONICAL,
    "off the curve": OFF_CURVE,
}


def challenge(r: bytes, public: bytes, message: bytes) -> int:
    return int.from_bytes(hashlib.sha512(r + public + message).digest(), "little") % GROUP_ORDER


def secret_scalar(seed: bytes) -> int:
    digest = bytearray(hashlib.sha512(seed).digest()[:32])
    digest[0] &= 248
    digest[31] = digest[31] & 127 | 64
    return int.from_bytes(digest, "little")


def identity_signature(message: bytes) -> bytes:
    """A true signature with R = identity: the nonce is zero, so S = k * a."""
    scalar = challenge(IDENTITY, PUBLIC, message) * secret_scalar(SEED) % GROUP_ORDER
    return IDENTITY + scalar.to_bytes(32, "little")


def test_the_arithmetic_of_this_file_knows_the_curve() -> None:
    assert encode(times(secret_scalar(SEED), BASE_POINT)) == PUBLIC
    assert times(GROUP_ORDER, BASE_POINT) == NEUTRAL
    assert encode(NEUTRAL) == IDENTITY
    assert len(set(SMALL)) == 8


@pytest.mark.req("R-2-01", "R-6.4-14")
@pytest.mark.parametrize(
    "seed, public, message, signature",
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)
def test_rfc_8032_vectors(seed: str, public: str, message: str, signature: str) -> None:
    secret, key, text, wanted = map(bytes.fromhex, (seed, public, message, signature))
    assert ed25519.public_key(secret) == key
    assert ed25519.sign(secret, key, text) == wanted
    assert ed25519.verify(key, text, wanted)
    assert not ed25519.verify(key, text + b"x", wanted)


@pytest.mark.req("R-6.4-20", "R-6.4-21")
@pytest.mark.parametrize("name", BAD_POINTS)
def test_a_bad_public_key_is_refused(name: str) -> None:
    assert not ed25519.prove_point(BAD_POINTS[name])


@pytest.mark.req("R-6.4-20", "R-6.4-21")
def test_good_keys_are_proven_and_the_identity_is_none() -> None:
    assert ed25519.prove_point(PUBLIC)
    assert ed25519.prove_point(BASE)
    assert not ed25519.prove_point(IDENTITY)
    assert not ed25519.prove_point(PUBLIC[:31])
    assert not ed25519.prove_point(PUBLIC + b"\x00")


@pytest.mark.req("R-6.4-15", "R-6.4-40")
@pytest.mark.parametrize("name", BAD_POINTS)
def test_a_bad_r_is_a_fault_of_the_encoding(name: str) -> None:
    signature = BAD_POINTS[name] + ed25519.sign(SEED, PUBLIC, MESSAGE)[32:]
    assert ed25519.defect_of_encoding(signature) is Defect.POINT
    assert ed25519.classify(PUBLIC, MESSAGE, signature) is Defect.POINT
    assert not ed25519.verify(PUBLIC, MESSAGE, signature)


@pytest.mark.req("R-6.4-15")
@pytest.mark.parametrize("torsion", SMALL[1:])
def test_an_r_of_mixed_order_that_satisfies_the_cofactored_equation_is_refused(torsion: Point) -> None:
    # R = [r]B + T with T small: only a verifier that multiplies by the cofactor would be taken in.
    r = encode(add(times(11, BASE_POINT), torsion))
    scalar = (11 + challenge(r, PUBLIC, MESSAGE) * secret_scalar(SEED)) % GROUP_ORDER
    signature = r + scalar.to_bytes(32, "little")
    assert not ed25519.verify(PUBLIC, MESSAGE, signature)
    assert ed25519.classify(PUBLIC, MESSAGE, signature) is Defect.POINT


@pytest.mark.req("R-6.4-15", "R-6.4-43")
def test_identity_r_verifies_when_the_equation_holds() -> None:
    signature = identity_signature(MESSAGE)
    assert ed25519.verify(PUBLIC, MESSAGE, signature)
    assert ed25519.classify(PUBLIC, MESSAGE, signature) is None
    assert ed25519.classify(PUBLIC, MESSAGE + b"x", signature) is Defect.EQUATION
    other = (int.from_bytes(signature[32:], "little") + 1) % GROUP_ORDER
    assert ed25519.classify(PUBLIC, MESSAGE, IDENTITY + other.to_bytes(32, "little")) is Defect.EQUATION
    assert ed25519.classify(PUBLIC, MESSAGE, IDENTITY + bytes(32)) is Defect.EQUATION


@pytest.mark.req("R-6.4-16")
def test_s_is_never_reduced() -> None:
    good = ed25519.sign(SEED, PUBLIC, MESSAGE)
    scalar = int.from_bytes(good[32:], "little")
    for too_large in (GROUP_ORDER, scalar + GROUP_ORDER, 2**256 - 1):
        signature = good[:32] + too_large.to_bytes(32, "little")
        assert ed25519.classify(PUBLIC, MESSAGE, signature) is Defect.SCALAR
        assert not ed25519.verify(PUBLIC, MESSAGE, signature)
        assert not ed25519.verify(PUBLIC, MESSAGE, IDENTITY + too_large.to_bytes(32, "little"))
    largest = good[:32] + (GROUP_ORDER - 1).to_bytes(32, "little")
    assert ed25519.classify(PUBLIC, MESSAGE, largest) is Defect.EQUATION


@pytest.mark.req("R-6.4-14")
def test_the_prehash_and_context_variants_never_verify() -> None:
    prefix = b"SigEd25519 no Ed25519 collisions"
    digest = hashlib.sha512(MESSAGE).digest()
    scalar = secret_scalar(SEED)
    nonce_key = hashlib.sha512(SEED).digest()[32:]
    for dom, content in ((prefix + b"\x01\x00", digest), (prefix + b"\x00\x03ctx", MESSAGE)):
        nonce = int.from_bytes(hashlib.sha512(dom + nonce_key + content).digest(), "little") % GROUP_ORDER
        r = encode(times(nonce, BASE_POINT))
        k = int.from_bytes(hashlib.sha512(dom + r + PUBLIC + content).digest(), "little") % GROUP_ORDER
        signature = r + ((nonce + k * scalar) % GROUP_ORDER).to_bytes(32, "little")
        assert ed25519.classify(PUBLIC, MESSAGE, signature) is Defect.EQUATION


@settings(max_examples=60, deadline=None)
@given(seed=st.binary(min_size=32, max_size=32), message=st.binary(max_size=200), flip=st.integers(0, 511))
def test_signatures_agree_with_openssl_and_bear_no_change(seed: bytes, message: bytes, flip: int) -> None:
    public = ed25519.public_key(seed)
    signature = ed25519.sign(seed, public, message)
    assert Ed25519PrivateKey.from_private_bytes(seed).sign(message) == signature
    assert ed25519.verify(public, message, signature)
    changed = bytearray(signature)
    changed[flip // 8] ^= 1 << flip % 8
    assert not ed25519.verify(public, message, bytes(changed))


@pytest.mark.req("R-2-01", "R-2-11")
def test_base64url_is_canonical_or_refused() -> None:
    for plain, text in ((b"", ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff", "-_8")):
        assert ed25519.encode_base64url(plain) == text
        assert ed25519.decode_base64url(text) == plain
    for text in ("Zg==", "Zh", "Zm9", "A", "Zm+v", "Zm/v", "Zm9v\n", " Zm9v", "Zé"):
        with pytest.raises(ValueError, match="base64url"):
            ed25519.decode_base64url(text)


def test_signing_many_gives_what_signing_each_gives() -> None:
    messages = [b"", b"one", bytes(5000), b"one"]
    assert ed25519.sign_all(SEED, PUBLIC, messages) == [ed25519.sign(SEED, PUBLIC, message) for message in messages]
    assert ed25519.sign_all(SEED, PUBLIC, []) == []
