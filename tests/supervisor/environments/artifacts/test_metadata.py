"""Metadata of an artifact: each field is checked, and errors name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nsmd.environments.artifacts.metadata import (
    Metadata,
    MetadataError,
    parse_entry,
    parse_file,
    with_variable,
)
from nsmd.model.settings import Defaults, SessionSettings, Settings

DEFAULTS = Defaults(timeout_seconds=20.0, memory_mb=300)

NEWER = {
    "schema": 1,
    "name": "science",
    "interpreter_type": "python",
    "timeout_seconds": 60,
    "memory_mb": 1024,
    "program": "/nix/store/x/bin/python3",
}


def parsed(**changes: Any) -> Metadata:
    facts = {key: value for key, value in {**NEWER, **changes}.items() if value is not ...}
    return parse_file(json.dumps(facts).encode(), DEFAULTS)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "../etc"}, "name is '../etc', expected 1 to 64 of a-z"),
        ({"name": "-x"}, "name is '-x'"),
        ({"name": "x" * 65}, "name is 'xxx"),
        ({"name": "a\n"}, r"name is 'a\\n'"),
        ({"name": ...}, "name is missing"),
        ({"interpreter_type": "ruby"}, "interpreter_type is 'ruby', expected python or bash or no"),
        ({"interpreter_type": ...}, "interpreter_type is missing"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0, expected a number of seconds above 0"),
        ({"timeout_seconds": True}, "timeout_seconds is True"),
        ({"timeout_seconds": 1e9}, "timeout_seconds is 1000000000.0"),
        ({"memory_mb": 0}, "memory_mb is 0, expected a whole number of MiB"),
        ({"memory_mb": 10**12}, "memory_mb is 10"),
        ({"schema": 2}, "made for a newer nsm"),
        ({"schema": True}, "schema is True"),
        ({"program": "python3"}, "program is 'python3', expected an absolute path"),
        ({"program": ...}, "program is missing"),
        ({"preload": "numpy"}, "preload is 'numpy', expected a list"),
        ({"preload": ["numpy; import os"]}, "preload has 'numpy; import os'"),
        ({"preload": ["x"] * 65}, "preload has 65 modules"),
        ({"preload": ["numpy"], "interpreter_type": "node"}, "preload is for Python"),
    ],
)
def test_a_mistake_names_the_field_and_what_was_expected(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parsed(**changes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b'{"name": ', "not valid JSON"),
        (b"[]", r"it is \[\], expected a map"),
        (b"\xff", "not UTF-8"),
        (b'{"timeout_seconds": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"memory_mb": ' + b"9" * 5000 + b"}", "not valid JSON"),
    ],
)
def test_a_file_that_is_no_metadata_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parse_file(data, DEFAULTS)


@pytest.mark.parametrize(
    ("name", "entry", "why"),
    [
        ("a b", {"exec": "/x"}, "its name is 'a b'"),
        ("x", {"backend": "microvm", "exec": "/x"}, "microvm, is not available yet"),
        ("x", {"backend": "docker", "exec": "/x"}, "backend is 'docker', expected `jail`"),
        ("x", {"interpreter_type": "bash"}, "exec is missing"),
        ("x", {"exec": "run", "interpreter_type": "bash"}, "exec is 'run', expected an absolute"),
        ("x", {"exec": "/x"}, "interpreter_type is missing"),
        ("x", "/nix/store/x", "expected a map"),
    ],
)
def test_an_entry_that_cannot_be(name: str, entry: object, why: str) -> None:
    with pytest.raises(MetadataError, match=why):
        parse_entry(name, entry, DEFAULTS)


SAID = json.dumps(
    {
        "environments": {"a": 1},
        "session": {"idle_timeout_seconds": 60},
        "project": {"use_flake": True, "inherit_env": ["TOKEN"]},
    }
)


def test_the_supervisors_own_metadata_counts_where_nothing_else_is_configured() -> None:
    settings = with_variable(Settings(), SAID)
    assert settings.session == SessionSettings(idle_timeout_seconds=60.0)
    assert settings.project.use_flake
    assert settings.project.inherit_env.vars == ("TOKEN",)
    configured = Settings(session=SessionSettings(idle_timeout_seconds=5.0))
    assert with_variable(configured, SAID).session == configured.session
    assert with_variable(configured, None) == configured
