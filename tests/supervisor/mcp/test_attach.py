"""The first line of an attachment."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsm.wire.errors import BadRequestError, NsmError
from nsmd.mcp.attachment import accepted, parse_attach, refused
from nsmd.model.values import Sources


def line(variables: dict[str, Any] | None = None, **more: Any) -> bytes:
    return json.dumps({"nsm": 1, "attach": {"variables": variables or {}, **more}}).encode()


def test_a_whole_line() -> None:
    attach = parse_attach(
        line(
            {
                "PROJECT_DIR": "/p",
                "NSM_SCOPE": "shared",
                "SESSION_IDLE_TIMEOUT": "60",
                "SESSION_MAX_LIFETIME": "1e3",
                "PROJECT_MODE": "readonly",
                "SECRET_TOKEN": "never",
                "CLAUDE_PROJECT_DIR": "",
            },
            cwd="/here",
            pid=7,
            program_version="0.1.0",
            newer_field=True,
        )
    )
    assert attach.scope == "shared"
    assert (attach.idle_timeout_s, attach.max_lifetime_s) == (60.0, 1000.0)
    assert (attach.cwd, attach.pid, attach.program_version) == ("/here", 7, "0.1.0")
    # A variable that means nothing to nsm is dropped unread; an empty one counts as unset.
    assert "SECRET_TOKEN" not in attach.variables
    assert "CLAUDE_PROJECT_DIR" not in attach.variables


def test_the_shortest_line() -> None:
    attach = parse_attach(b'{"nsm": 1, "attach": {}}')
    assert dict(attach.variables) == {}
    assert attach.cwd is None
    assert attach.scope is None


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"{", "must be JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "must be"),
        (b'{"nsm": 2, "attach": {}}', "must be"),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "initialize"}', "must be"),
        (b'{"nsm": 1}', "must be an object"),
        (b'{"nsm": 1, "attach": []}', "must be an object"),
        (b'{"nsm": 1, "attach": {"variables": 7}}', "must be an object"),
        (line({"PROJECT_DIR": 7}), "PROJECT_DIR must be text"),
        (line({"PROJECT_DIR": "a\0b"}), "PROJECT_DIR must be text"),
        (line({"PROJECT_MODE": "rw"}), "must be 'readonly' or 'overlay', not 'rw'"),
        (line({"SESSION_IDLE_TIMEOUT": "soon"}), "SESSION_IDLE_TIMEOUT .* not 'soon'"),
        (line({"SESSION_IDLE_TIMEOUT": "0"}), "above 0"),
        (line({"SESSION_MAX_LIFETIME": "nan"}), "above 0"),
        (line({"SESSION_MAX_LIFETIME": "inf"}), "above 0"),
        (line({"NSM_SCOPE": "a\nb"}), "printable"),
        (line({"NSM_SCOPE": "x" * 201}), "at most 200"),
        (line({"NSM_BRIDGE": "Deploy"}), "names of programs, separated by commas"),
        (line({"NSM_BRIDGE": "off,deploy"}), "names of programs, separated by commas"),
        (line({"NSM_BRIDGE": "a b"}), "names of programs, separated by commas"),
        (line({"NSM_BRIDGE": "a\0"}), "NUL"),
    ],
)
def test_mistakes_name_what_was_expected(first: bytes, says: str) -> None:
    with pytest.raises(BadRequestError, match=says):
        parse_attach(first)


def test_a_working_directory_that_is_none_is_left_out() -> None:
    assert parse_attach(line(cwd=7)).cwd is None
    assert parse_attach(line(cwd="a\0b")).cwd is None


def test_answers() -> None:
    assert json.loads(accepted(version="0.1.0", pid=7)) == {
        "nsm": 1,
        "ok": True,
        "program_version": "0.1.0",
        "pid": 7,
    }
    error: NsmError = BadRequestError("no", hint="do this")
    assert json.loads(refused(error)) == {
        "nsm": 1,
        "ok": False,
        "error": {"code": "bad-request", "message": "no", "hint": "do this"},
    }


def test_metadata_of_the_entry_has_defaults_for_its_sessions() -> None:
    metadata = '{"session": {"idle_timeout_seconds": 60, "max_lifetime_seconds": 70}}'
    attach = parse_attach(line({"NIX_SANDBOX_METADATA": metadata, "SESSION_MAX_LIFETIME": "5"}))
    assert attach.sources == Sources(metadata=metadata)
    assert (attach.idle_timeout_s, attach.max_lifetime_s) == (60.0, 5.0)


@pytest.mark.parametrize("metadata", ["{", "\ud800", "[" * 50_000])
def test_broken_metadata_of_the_entry_is_no_reason_to_refuse_the_client(metadata: str) -> None:
    attach = parse_attach(line({"NIX_SANDBOX_METADATA": metadata}))
    assert attach.sources == Sources(metadata=metadata)
    assert attach.idle_timeout_s is None


@pytest.mark.parametrize(
    ("variables", "programs"),
    [
        (dict[str, str](), None),
        ({"NSM_BRIDGE": ""}, frozenset[str]()),
        ({"NSM_BRIDGE": "off"}, frozenset[str]()),
        ({"NSM_BRIDGE": " deploy_prod, restart-db,"}, frozenset({"deploy_prod", "restart-db"})),
    ],
)
def test_which_programs_an_entry_may_start(
    variables: dict[str, str], programs: frozenset[str] | None
) -> None:
    assert parse_attach(line(variables)).programs == programs
