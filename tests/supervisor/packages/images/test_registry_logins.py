"""Images of registries that want a login: by password, and by a token of another server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest

from image_world import Layout, file, layer, make_image, make_store
from nsm.wire.errors import PackagesFailedError
from realjail import open_directory
from registry_world import running_registry, signed_token, signing_key

pytestmark = [
    pytest.mark.slow,
    pytest.mark.jail,
    pytest.mark.skipif(
        not (shutil.which("skopeo") and shutil.which("docker-registry")),
        reason="not here: no skopeo or docker-registry",
    ),
]

USER, PASSWORD = "reader", "open sesame"
HASHED = "$2b$04$1Nu8lD9NqSnyRnJ0z0c49.RH/ghfG3HSnYLfs4MuwOJb4Ta3DqF16"
"""The password as htpasswd has it (bcrypt)."""
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

Auth = Literal["password", "token"]


@contextmanager
def token_server(key: str) -> Generator[tuple[str, list[str]]]:
    """A server of tokens; yields its address, and the scopes that it has given tokens for."""
    given: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            if self.headers.get("Authorization") != f"Basic {BASIC}":
                self.send_error(401)
                return
            scopes = asked.get("scope", [])
            given.extend(scopes)
            body = json.dumps({"token": signed_token(key, USER, scopes)}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name there
            """Be silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", given
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def place() -> Generator[Path]:
    """Return a directory that the jails' user reaches."""
    with open_directory() as directory:
        make_store(directory)
        yield directory


@contextmanager
def closed_registry(place: Path, auth: Auth) -> Generator[tuple[str, list[str]]]:
    """A registry with the image `team/web:1`; yields its address, and the scopes of tokens."""
    if auth == "password":
        (place / "htpasswd").write_text(f"{USER}:{HASHED}\n")
        settings = f"auth: {{htpasswd: {{realm: tests, path: {place}/htpasswd}}}}\n"
        with running_registry(place, settings) as address:
            push(place, address)
            yield address, []
        return
    key = signing_key(place / "certificate.pem")
    with token_server(key) as (realm, given):
        token = f"{{realm: '{realm}', service: tests, issuer: tests, "
        token += f"rootcertbundle: {place}/certificate.pem}}"
        with running_registry(place, f"auth: {{token: {token}}}\n") as address:
            push(place, address)
            given.clear()
            yield address, given


def push(place: Path, address: str) -> None:
    layout = Layout(place / "layout")
    layout.add([layer(file("data", "of the image"))])
    words = ["skopeo", "copy", "--dest-tls-verify=false", f"--dest-creds={USER}:{PASSWORD}"]
    subprocess.run(
        [*words, f"oci:{layout.place}:latest", f"docker://{address}/team/web:1"],
        check=True,
        capture_output=True,
        env={**os.environ, "HOME": str(place / "home")},
    )


def log_in(place: Path, address: str, where: str, login: str = BASIC) -> None:
    """Write a login as docker or skopeo keep it."""
    path = place / "home" / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": {address: {"auth": login}}}))


@pytest.mark.parametrize("where", [".docker/config.json", ".config/containers/auth.json"])
@pytest.mark.parametrize("auth", ["password", "token"])
async def test_the_users_login_opens_it(place: Path, auth: Auth, where: str) -> None:
    with closed_registry(place, auth) as (address, given):
        log_in(place, address, where)
        made = await make_image(place, f"docker://{address}/team/web:1")
    assert Path(made.path, "root", "data").read_text() == "of the image"
    if auth == "token":
        assert set(given) == {"repository:team/web:pull"}
    # Neither what sessions see nor what people are shown has it.
    left = [path for path in (place / "envs").rglob("*") if path.is_file()]
    for path in (*left, Path(made.lock), place / "log"):
        content = path.read_bytes()
        assert BASIC.encode() not in content
        assert PASSWORD.encode() not in content


@pytest.mark.parametrize("auth", ["password", "token"])
async def test_without_the_right_login_it_stays_closed(place: Path, auth: Auth) -> None:
    wrong = base64.b64encode(b"reader:wrong").decode()
    with closed_registry(place, auth) as (address, given):
        for login in ("", wrong):
            if login:
                log_in(place, address, ".docker/config.json", login)
            with pytest.raises(PackagesFailedError, match="skopeo cannot fetch it") as caught:
                await make_image(place, f"docker://{address}/team/web:1")
            assert "skopeo login" in caught.value.hint
            assert wrong not in f"{caught.value} {(place / 'log').read_text()}"
        assert not given
    assert not [name for name in os.listdir(place / "envs") if not name.startswith(".")]
