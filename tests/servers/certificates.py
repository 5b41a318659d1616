"""Certificates for tests: authorities of our own, and what they sign for a server on this machine."""

from __future__ import annotations

import datetime
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


class Issued(NamedTuple):
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority; ``root`` is its own certificate, PEM."""

    def __init__(self, name: str) -> None:
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        usage = x509.BasicConstraints(ca=True, path_length=0)
        built = _builder(self._name, self._name, self._key.public_key()).add_extension(usage, critical=True)
        self.root = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, host: str = "127.0.0.1", *, ended: bool = False) -> Issued:
        """A certificate for an address; ``ended`` makes it one of last week."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
        past = 7 * _DAY if ended else 0 * _DAY
        built = _builder(_named(host), self._name, key.public_key(), past).add_extension(
            names, critical=False
        )
        certificate = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Issued(certificate, private)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, past: datetime.timedelta = 0 * _DAY
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC) - past
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )
