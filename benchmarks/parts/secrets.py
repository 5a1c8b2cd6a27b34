"""Secrets: extra time of a request into which nsm puts a value, over a plain tunnel."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import nsm
from bench import Bench, connect
from certificates import TestAuthority
from measure import Comparison, Findings, Target, alternate_all
from private_supervisor import private_supervisor
from secret_server import secret_server

CONFIGURATION = """
[secrets.token]
from = "file: {directory}/token"
hosts = ["{host}"]
as = ["env: TOKEN"]
"""
VALUE = "ghp_Abcdefgh12345678ijklmnop90QRSTUVWXyz"
ALLOWED_MS = 3.0
PEER = "the 3 ms that it may add"

BEGIN = """
import http.client, os, ssl, time
from urllib.parse import urlsplit
context = ssl.create_default_context(cadata={authority!r})
if "SSL_CERT_FILE" in os.environ:
    context.load_verify_locations(os.environ["SSL_CERT_FILE"])
proxy = urlsplit(os.environ["https_proxy"])
headers = {{"Authorization": "Bearer " + os.environ.get("TOKEN", "none")}}
def connected():
    made = http.client.HTTPSConnection(proxy.hostname, proxy.port, context=context)
    made.set_tunnel({host!r})
    return made
def asked(connection):
    began_s = time.perf_counter()
    connection.request("GET", "/plain", headers=headers)
    answer = connection.getresponse().read()
    assert answer, answer
    return (time.perf_counter() - began_s) * 1000
kept = connected()
asked(kept)
"""
ASK = """
fresh = connected()
print(asked(fresh), asked(kept))
fresh.close()
"""
WITH, WITHOUT = "with", "without"


def measure(bench: Bench) -> Findings:
    """One session that has been granted a secret, and one that has not, and the same server."""
    with tempfile.TemporaryDirectory(prefix="nsm-bench-") as name:
        directory = Path(name)
        authority = TestAuthority(directory)
        (directory / "token").write_text(f"{VALUE}\n")
        with secret_server(authority.certificate()) as server:
            configuration = CONFIGURATION.format(directory=directory, host=server.host)
            trusted = {"SSL_CERT_FILE": str(authority.bundle)}
            with (
                private_supervisor("nsm-bench-", configuration, trusted) as variables,
                connect(variables) as client,
            ):
                begin = BEGIN.format(authority=authority.bundle.read_text(), host=server.host)
                for session, secrets in ((WITH, ["token"]), (WITHOUT, [])):
                    result = client.run(
                        begin, env="python", session=session, network=server.host, secrets=secrets
                    )
                    assert result.exit_code == 0, result
                taken = alternate_all(
                    [partial(timed, client, WITH), partial(timed, client, WITHOUT)],
                    rounds=10 * bench.rounds,
                )
                assert {headers["authorization"] for _, _, headers, _ in server.seen} == {
                    f"Bearer {VALUE}",
                    "Bearer none",
                }
    for number, kind in enumerate(("on a new connection", "on a connection that is kept")):
        pairs = [(own[number], plain[number]) for own, plain in zip(*taken, strict=True)]
        yield Comparison(
            name=f"a request {kind}, with a secret",
            peer="the same through a plain tunnel",
            pairs=tuple(pairs),
            unit="ms",
        )
        yield Comparison(
            name=f"what a secret adds to a request {kind}",
            peer=PEER,
            pairs=tuple((max(0.0, own - plain), ALLOWED_MS) for own, plain in pairs),
            unit="ms",
            target=Target(bound="≤", value=1),
        )


def timed(client: nsm.Client, session: str) -> tuple[float, float]:
    """Milliseconds that the session's requests say they took."""
    result = client.run(ASK, env="python", session=session)
    assert result.exit_code == 0, result
    fresh, kept = map(float, result.stdout.split())
    return fresh, kept
