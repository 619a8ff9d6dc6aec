"""The local certificate authority of one HOME, and the server certificates that it issues."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mwnode.protocol.instants import Instant, parse
from mwnode.protocol.ports import Entropy

_AUTHORITY_DAYS = 3650
_SERVER_DAYS = 825
_SERIAL_BYTES = 20
# Clients of an edge network often have a clock that runs behind: a certificate is good from a day before it was made.
_BACKDATED = timedelta(days=1)

Pem = tuple[bytes, bytes]
"""A certificate and its private key, both as PEM."""


def issue_authority(organization_id: str, now: Instant, entropy: Entropy) -> Pem:
    """A self-signed certificate authority for one HOME, valid for ten years."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mwnode local CA")])
    certificate = (
        _builder(subject, subject, key, now, _AUTHORITY_DAYS, entropy)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(organization_id)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate, key)


def issue_server(authority: Pem, hosts: Iterable[str], now: Instant, entropy: Entropy) -> Pem:
    """A server certificate for these host names and addresses, signed by the local authority."""
    issuer = x509.load_pem_x509_certificate(authority[0])
    issuer_key = serialization.load_pem_private_key(authority[1], password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError(
            "the local CA's key is not an elliptic curve key: make a new HOME, or give your own certificate"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mwnode")])
    certificate = (
        _builder(subject, issuer.subject, key, now, _SERVER_DAYS, entropy)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
    return _pem(certificate, key)


def covers(certificate: bytes, host: str, now: Instant) -> bool:
    """Whether a server certificate (PEM) names the host and is valid now."""
    parsed = x509.load_pem_x509_certificate(certificate)
    if not parsed.not_valid_before_utc <= _moment(now) < parsed.not_valid_after_utc:
        return False
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _general_name(host) in names


def ends_at(certificate: bytes) -> Instant:
    """When the first certificate of a PEM file ends. ValueError for what is none."""
    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return parse(end.strftime("%Y-%m-%dT%H:%M:%SZ"))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: Instant,
    days: int,
    entropy: Entropy,
) -> x509.CertificateBuilder:
    moment = _moment(now)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        # A serial number is positive and at most 159 bits long (RFC 5280, 4.1.2.2).
        .serial_number((int.from_bytes(entropy.random(_SERIAL_BYTES), "big") >> 1) | 1)
        .not_valid_before(moment - _BACKDATED)
        .not_valid_after(moment + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _moment(now: Instant) -> datetime:
    return datetime.fromtimestamp(now.seconds, tz=UTC)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pem:
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
