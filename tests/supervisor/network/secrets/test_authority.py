"""The certificate authority of a session signs for the hosts of its secrets, and no others."""

from __future__ import annotations

import ssl
from datetime import timedelta

import pytest

from nsmd.network.secrets.authority import Authority, now_utc

NOW = now_utc()


def shake_hands(authority: Authority, name: str, signed: Authority | None = None) -> str:
    """Have OpenSSL check the certificate for a name; returns why not, or nothing."""
    client = ssl.create_default_context(cadata=authority.certificate)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    server = (signed or authority).context(name, NOW)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(6):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    assert ends[0].version() == "TLSv1.3"
    return ""


def test_hosts_of_the_secrets_are_trusted() -> None:
    authority = Authority.make(["a.example.org", "b.example.org"], NOW)
    assert shake_hands(authority, "a.example.org") == ""
    assert shake_hands(authority, "x.b.example.org") == ""


@pytest.mark.parametrize("name", ["example.org", "bank.example", "aa.example.org.evil"])
def test_no_other_host_is(name: str) -> None:
    authority = Authority.make(["a.example.org"], NOW)
    assert "permitted subtree" in shake_hands(authority, name)


YEAR = timedelta(days=366)


@pytest.mark.parametrize("jump", [10 * YEAR, -40 * YEAR, 5000 * YEAR, -60 * YEAR])
def test_a_clock_that_jumps_and_comes_back_leaves_certificates_good(jump: timedelta) -> None:
    authority = Authority.make(["a.example.org"], NOW)
    assert shake_hands(authority, "a.example.org") == ""
    authority.context("a.example.org", NOW + jump)
    assert shake_hands(authority, "a.example.org") == ""


@pytest.mark.parametrize("jump", [-9 * YEAR, 9 * YEAR])
def test_a_session_that_begins_with_a_wrong_clock_can_go_on_with_the_right_one(
    jump: timedelta,
) -> None:
    assert shake_hands(Authority.make(["a.example.org"], NOW + jump), "a.example.org") == ""


def test_certificates_are_kept_until_time_has_gone_by_or_has_jumped() -> None:
    authority = Authority.make(["a.example.org"], NOW)
    first = authority.context("a.example.org", NOW)
    assert authority.context("a.example.org", NOW + timedelta(days=1)) is first
    for days in (-40, 29, 300):
        later = NOW + timedelta(days=days)
        assert authority.context("a.example.org", later) is not first
