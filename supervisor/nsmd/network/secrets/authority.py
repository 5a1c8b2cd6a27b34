"""A certificate authority of one session or box, and certificates for the hosts of its secrets.

Its key never leaves memory: this process, and a memory file that the descriptor store keeps. Its
certificate is good for nothing but the hosts of the secrets (name constraints, RFC 5280, 4.2.1.10).
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nsm.dataclass import dataclass

PROTOCOL = "http/1.1"
"""The only protocol that is used on both sides: what nsm reads and writes again (RFC 7301)."""

_OFFERED = (PROTOCOL, "h2")
"""Protocols that clients may choose, the first that they know. The last one is to be refused: it
tells those that know no other.
"""

AUTHORITY_DAYS = 3650
"""Validity of an authority: longer than any session lives, since what it signs is bounded by its
name constraints, and its key goes with the session.
"""

LEAF_DAYS = 30
RENEW_DAYS = 15
"""Validity of a host's certificate, and how much of it must be left on both sides of now; clocks
jump.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """Certificate of a host."""

    context: ssl.SSLContext
    not_before: datetime
    not_after: datetime

    def is_good_at(self, now: datetime) -> bool:
        """Return whether it is far from both ends of its validity."""
        return self.not_before < now < self.not_after - timedelta(days=LEAF_DAYS - RENEW_DAYS)


class Authority:
    """A certificate authority."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        # One key for all hosts: whoever had it could do no more than with one of each.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._signed: dict[str, Signed] = {}

    @classmethod
    def make(cls, names: Iterable[str], now: datetime) -> Authority:
        """Make an authority for hosts of these names, and for names below them."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nsm, for one session")])
        everywhere = [x509.IPAddress(ip_network(text)) for text in ("0.0.0.0/0", "::/0")]
        constraints = x509.NameConstraints(
            permitted_subtrees=[x509.DNSName(each) for each in dict.fromkeys(names)],
            excluded_subtrees=everywhere,  # what is not named here would be permitted
        )
        certificate = (
            _begun(name, name, key.public_key(), now, AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(constraints, critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @classmethod
    def from_pem(cls, data: str) -> Authority:
        """Read what `to_pem` returned."""
        key = serialization.load_pem_private_key(data.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey), "it was made here"
        return cls(key, x509.load_pem_x509_certificate(data.encode()))

    def to_pem(self) -> str:
        """Return key and certificate, for a memory file."""
        return _private(self._key) + self.certificate

    @property
    def certificate(self) -> str:
        """The certificate that code has to trust, as PEM."""
        return self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def context(self, host: str, now: datetime) -> ssl.SSLContext:
        """Return the TLS context of a server of that name."""
        found = self._signed.get(host)
        if found is None or not found.is_good_at(now):
            if len(self._signed) >= 1000:  # of `*.example.org` code can ask for many
                self._signed.clear()
            found = self._signed[host] = self._sign(host, now)
        return found.context

    def _sign(self, host: str, now: datetime) -> Signed:
        # A name as the common name may have 64 characters at most; programs read the other one.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        public = self._leaf_key.public_key()
        certificate = (
            _begun(subject, self._certificate.subject, public, now, LEAF_DAYS)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(_OFFERED)

        def check_name(_tls: object, name: str | None, _context: object) -> int | None:
            return None if (name or "").lower() == host else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context.sni_callback = check_name
        _load(context, pem + _private(self._leaf_key))
        return Signed(
            context=context,
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=days))
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()


def _load(context: ssl.SSLContext, pem: str) -> None:
    """Load a certificate and its key: `ssl` takes them from files only, so from one in memory."""
    file = os.memfd_create("nsm-certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, pem.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def now_utc() -> datetime:
    """The present time."""
    return datetime.now(UTC)
