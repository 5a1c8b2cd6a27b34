"""Variables that a supervisor gets from the client that starts it."""

from __future__ import annotations

import os

import pytest

from nsm.startup import spawn

PASSED = {
    "HOME": "/home/me",
    "PATH": "/usr/bin",
    "PIP_INDEX_URL": "https://index.test/",
    "UV_INDEX_COMPANY_PASSWORD": "x",
    "UV_HTTP_TIMEOUT": "5",
    "npm_config_//registry.test/:_authToken": "x",
    "NETRC": "/home/me/netrc",
    "REQUESTS_CA_BUNDLE": "/ca.pem",
}
NOT_PASSED = {
    "AWS_SECRET_ACCESS_KEY": "x",
    "UV_PUBLISH_TOKEN": "x",
    "NODE_AUTH_TOKEN": "x",
    "NSM_SCOPE": "box",
    "NIX_SANDBOX_ENVS": "x",
}


def test_a_supervisor_gets_what_it_needs_and_no_other_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**PASSED, **NOT_PASSED}.items():
        monkeypatch.setenv(name, value)
    assert spawn.supervisor_environment("/run/x") == {**PASSED, "NSM_SOCKET": "/run/x"}
