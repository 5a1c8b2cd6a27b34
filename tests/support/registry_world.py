"""A real registry on loopback, and tokens for it."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID


@contextmanager
def running_registry(place: Path, more: str = "") -> Generator[str]:
    """A registry without TLS, which the user's configuration allows; yields its address.

    Args:
        place: directory for its files, with the user's `home`.
        more: lines of its configuration.
    """
    settings = place / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {place}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:0'}}\n{more}"
    )
    with subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            found = (re.search(r"listening on (127\.0\.0\.1:[0-9]+)", x) for x in process.stderr)
            address = next(match[1] for match in found if match is not None)
            allowed = place / "home" / ".config" / "containers" / "registries.conf"
            allowed.parent.mkdir(parents=True)
            allowed.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
            yield address
        finally:
            process.kill()


def signing_key(certificate: Path) -> str:
    """Make a key that signs tokens, and write its certificate; returns the key as PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem = serialization.Encoding.PEM
    kind = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, kind, serialization.NoEncryption()).decode()
    der = base64.b64encode(made.public_bytes(serialization.Encoding.DER)).decode()
    return json.dumps({"key": secret, "certificate": der})


def signed_token(key: str, user: str, scopes: Sequence[str]) -> str:
    """Make a token for a registry (distribution's token specification).

    Args:
        key: from `signing_key`.
        scopes: as asked for: ``repository:NAME:ACTION,ACTION``.
    """
    parts = json.loads(key)
    private = serialization.load_pem_private_key(parts["key"].encode(), None)
    assert isinstance(private, rsa.RSAPrivateKey)
    now = int(time.time())
    access = [
        {"type": kind, "name": name, "actions": actions.split(",")}
        for kind, name, actions in (scope.split(":", 2) for scope in scopes)
    ]
    head = {"typ": "JWT", "alg": "RS256", "x5c": [parts["certificate"]]}
    claims: dict[str, object] = {"iss": "tests", "aud": "tests", "sub": user, "access": access}
    claims |= {"nbf": now - 60, "iat": now, "exp": now + 300, "jti": str(now)}
    text = f"{_encoded(json.dumps(head).encode())}.{_encoded(json.dumps(claims).encode())}"
    signature = private.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{text}.{_encoded(signature)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
