"""Environment variables of a program."""

from __future__ import annotations

import os
import pwd

import pytest

from bridge_programs import program
from nsmd.bridge.call import PATH, variables_of

MINIMUM = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG"}


def test_a_fixed_minimum() -> None:
    own = {"HOME": "/home/me", "PATH": "/opt/odd", "SECRET": "x", "LD_PRELOAD": "y", "USER": "z"}
    found = variables_of(program("/x", env=()), own)
    assert found.keys() == MINIMUM
    assert found["HOME"] == "/home/me"
    assert found["PATH"] == PATH
    assert found["USER"] == found["LOGNAME"] == pwd.getpwuid(os.getuid()).pw_name
    assert found["LANG"] == "C.UTF-8"


def test_the_language_and_the_time_zone() -> None:
    own = {"LANG": "de_DE.UTF-8", "LC_TIME": "C", "TZ": "Europe/Berlin", "LC_ALL": ""}
    found = variables_of(program("/x", env=()), own)
    assert found.keys() == MINIMUM | {"LC_TIME", "TZ"}
    assert found["LANG"] == "de_DE.UTF-8"


def test_what_the_definition_names_is_passed_on() -> None:
    own = {"PATH": "/opt/odd", "TOKEN": "t", "EMPTY": "", "SECRET": "x"}
    found = variables_of(program("/x", env=("TOKEN", "EMPTY", "PATH", "UNSET")), own)
    assert found.keys() == MINIMUM | {"TOKEN", "EMPTY"}
    assert (found["PATH"], found["TOKEN"], found["EMPTY"]) == ("/opt/odd", "t", "")


def test_a_user_without_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_entry(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    found = variables_of(program("/x", env=()), {})
    assert (found["HOME"], found["SHELL"], found["USER"]) == ("/", "/bin/sh", str(os.getuid()))
