"""The answers about secrets: never a value."""

from collections.abc import Mapping
from typing import NamedTuple

from nsm.wire.operation import operation


class SecretRow(NamedTuple):
    """A secret as configured.

    Attributes:
        name: its name.
        source: ``command``, ``file``, ``keyring`` or ``environment``.
        hosts: hosts whose requests get the value, over TLS.
        variables: names of variables that have its stand-in.
        headers: names of headers that nsm adds.
    """

    name: str
    source: str
    hosts: tuple[str, ...]
    variables: tuple[str, ...]
    headers: tuple[str, ...]


class SecretGrantRow(NamedTuple):
    """A secret that a session or box has.

    Attributes:
        owner: id of the session or box; `kind` says which of the two.
        name: name of the session; None for a box, and without one.
        secret: name of the secret.
        uses: number of requests with it, since this supervisor began.
        revoked: its stand-in is worth nothing any more.
        helper_pid: process that has the value; 0 while there is none.
    """

    owner: str
    kind: str
    name: str | None
    secret: str
    uses: int
    revoked: bool
    helper_pid: int


class SecretsReport(NamedTuple):
    """All secrets, and who has them."""

    secrets: tuple[SecretRow, ...]
    grants: tuple[SecretGrantRow, ...]


class SecretTest(NamedTuple):
    """A secret was read.

    Attributes:
        stand_in: text of the kind that code sees in its place.
    """

    stand_in: str


class SecretRevocation(NamedTuple):
    """A secret was revoked.

    Attributes:
        owners: ids of the sessions and boxes that had it.
    """

    owners: tuple[str, ...]


class BoxSecrets(NamedTuple):
    """Content of a box for its secrets.

    Attributes:
        variables: names of variables, and the stand-ins in them.
        certificate: certificate that its programs have to trust, as PEM.
    """

    variables: Mapping[str, str]
    certificate: str


@operation("read")
def secrets() -> SecretsReport: ...
@operation("manage", key="stand_in", recorded=("name",))
def secret_test(name: str) -> str: ...
@operation("manage", key="owners", recorded=None)
def secret_revoke(name: str, owner: str | None = None) -> tuple[str, ...]: ...
