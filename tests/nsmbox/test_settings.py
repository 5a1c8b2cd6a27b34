"""`[box]` of `config.toml`: read without pydantic, checked by the supervisor as well."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from nsmbox.model import settings
from nsmbox.model.plan import MODES, BoxError, Network
from nsmbox.model.settings import BoxSettings, load, parse
from nsmd.config import config_file
from nsmd.model import settings as of_supervisor
from nsmd.model.names import PROGRAM_NAME

if TYPE_CHECKING:
    from pathlib import Path

FULL = b"""
[session]
max_sessions = 3

[box]
net = ["pypi.org", "*.github.com:443"]
profile = "shell"
protect = false
protect_paths = ["Makefile", "ci/hooks"]
show = ["~/data", "/srv/models"]
bridge = ["deploy", "restart-db"]
add = ["~/lib:rw", "/srv/docs"]
hide = [".env", "keys/*.pem"]
persist = ["~/.cache/uv/", "~/.npm"]
env = ["GH_TOKEN"]
"""

WRONG = {
    b"[box]\nnet = 'on'": 'box.net: found \'on\', expected "off", "full" or a list of hosts',
    b"[box]\nnet = {}": 'box.net: found {}, expected "off", "full" or a list of hosts',
    b"[box]\nnet = { allow = 'x.org' }": "box.net: found 'x.org', expected",
    b"[box]\nnet = ['']": "box.net: found [''], expected a list",
    b"[box]\nprofile = 3": "box.profile: found 3",
    b"[box]\nprofile = ''": "box.profile: found ''",
    b"[box]\nprotect = 'yes'": "box.protect: found 'yes', expected true or false",
    b"[box]\nprotect_paths = ['/etc']": "box.protect_paths: found '/etc', expected a path inside",
    b"[box]\nprotect_paths = ['a/../..']": "box.protect_paths: found 'a/../..', expected a path",
    b"[box]\nshow = ['data']": "box.show: found 'data', expected an absolute path",
    b"[box]\nbridge = 'deploy'": "box.bridge: found 'deploy', expected a list of texts",
    b"[box]\nbridge = ['../x']": "box.bridge: found '../x', expected names of the bridge's",
    b"[box]\nbridge = ['Deploy']": "box.bridge: found 'Deploy', expected names of the bridge's",
    b"[box]\nbridge = ['a.b']": "box.bridge: found 'a.b', expected names of the bridge's",
    b"[box]\nadd = ['lib']": "box.add: found 'lib', expected an absolute path",
    b'[box]\nhide = ["a\\u0000b"]': "box.hide: found ['a\\x00b'], expected",
    b"[box]\nhide = ['']": "box.hide: found [''], expected a list of texts",
    b"[box]\npersist = ['/x']": "box.persist: found '/x', expected a directory below ~/",
    b"[box]\npersist = ['~/']": "box.persist: found '~/', expected a directory below ~/",
    b"[box]\npersist = ['~/a/../..']": "box.persist: found '~/a/../..', expected a directory",
    b"[box]\nenv = ['A=1']": "box.env: found something that is not a variable name",
    b"[box]\nnett = 'host'": "box.nett: unknown key. Known here: net, profile",
    b"box = 3": "box: found 3, expected a table [box]",
}


def test_a_file_gives_all_keys() -> None:
    assert parse(FULL, "c") == BoxSettings(
        net=Network(mode="allow", allow=("pypi.org", "*.github.com:443")),
        profile="shell",
        protect=False,
        protect_paths=("Makefile", "ci/hooks"),
        show=(os.path.expanduser("~/data"), "/srv/models"),
        bridge=("deploy", "restart-db"),
        add=(os.path.expanduser("~/lib:rw"), "/srv/docs"),
        hide=(".env", "keys/*.pem"),
        persist=(".cache/uv", ".npm"),
        env=("GH_TOKEN",),
    )


@pytest.mark.parametrize(
    ("word", "mode"), [("full", "host"), ("off", "none"), ("host", "host"), ("none", "none")]
)
def test_the_network_is_a_word(word: str, mode: str) -> None:
    assert parse(f"[box]\nnet = {word!r}".encode(), "c").net.mode == mode


def test_the_older_spelling_of_a_list_is_read_by_both() -> None:
    older = FULL.replace(b"net = [", b"net = { allow = [").replace(b'443"]', b'443"] }')
    assert older != FULL
    assert parse(older, "c") == parse(FULL, "c")
    assert config_file.parse(older, "c") == config_file.parse(FULL, "c")


def test_both_make_rules_for_requests_of_hosts() -> None:
    config = b"[box]\nnet = { allow = ['a.org', 'GET https://b.org/x'], intercept = true }"
    allow = ("* https://a.org/*", "GET https://b.org/x")
    assert parse(config, "c").net == Network(mode="allow", allow=allow)
    assert config_file.parse(config, "c").box.net == allow


def test_the_supervisor_has_the_same_keys_and_defaults() -> None:
    ours = {field.name for field in dataclasses.fields(BoxSettings)}
    assert {field.name for field in dataclasses.fields(of_supervisor.BoxDefaults)} == ours
    default, its = BoxSettings(), of_supervisor.Settings().box
    assert MODES[str(its.net)] == default.net.mode
    for name in ours - {"net"}:
        assert getattr(its, name) == getattr(default, name)


def test_the_supervisor_takes_what_is_right() -> None:
    box = config_file.parse(FULL, "c").box
    assert box.net == ("pypi.org", "*.github.com:443")
    assert (box.profile, box.protect, box.protect_paths) == (
        "shell",
        False,
        ("Makefile", "ci/hooks"),
    )
    assert box.show == ("~/data", "/srv/models")
    assert box.bridge == ("deploy", "restart-db")
    assert (box.add, box.hide) == (("~/lib:rw", "/srv/docs"), (".env", "keys/*.pem"))
    assert (
        config_file.parse(config_file.render(config_file.parse(FULL, "c")).encode(), "c").box == box
    )


@pytest.mark.parametrize("data", WRONG, ids=lambda data: data.decode())
def test_what_is_wrong_is_said_by_key_and_by_both(data: bytes) -> None:
    with pytest.raises(BoxError) as refused:
        parse(data, "c.toml")
    assert refused.value.message.startswith(f"c.toml: {WRONG[data]}")
    assert refused.value.exit_code == 2
    assert "nsm config check" in refused.value.hint
    with pytest.raises(config_file.ConfigError) as told:
        config_file.parse(data, "c.toml")
    assert WRONG[data].partition(":")[0] in told.value.problems[0]
    assert len(told.value.problems) == 1


def test_lists_are_bounded_as_with_the_supervisor() -> None:
    data = f"[box]\nshow = {['/x'] * (settings.MAX_PATHS + 1)}".encode()
    with pytest.raises(BoxError, match="has 257, expected at most 256"):
        parse(data, "c")
    with pytest.raises(config_file.ConfigError):
        config_file.parse(data, "c")


@pytest.mark.parametrize(
    "name",
    ["a", "0", "a-b_c", "a" * 64, "", "-a", "_a", "a" * 65, "a.b", "a b", "A", "\u00e4", "a/"],
)
def test_names_of_programs_are_those_of_the_supervisor(name: str) -> None:
    assert settings.is_program_name(name) == bool(PROGRAM_NAME.fullmatch(name))


def test_hosts_are_checked_by_the_supervisor() -> None:
    with pytest.raises(config_file.ConfigError, match=r"box\.net: "):
        config_file.parse(b"[box]\nnet = { allow = ['http://x'] }", "c")


def test_files_that_are_missing_broken_or_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    assert load(str(path)) == BoxSettings()
    path.write_bytes(b"[box]\nprofile = 'shell'\n")
    assert load(str(path)).profile == "shell"
    for content, words in (
        (b"[box", "is not valid TOML"),
        (b"[box]\nprofile = '\xff'", "is not UTF-8 text"),
        (b"#" * (settings.MAX_CONFIG_BYTES + 1), "is larger than"),
    ):
        path.write_bytes(content)
        with pytest.raises(BoxError, match=words):
            load(str(path))
    with pytest.raises(BoxError, match="cannot be read: Is a directory"):
        load(str(tmp_path))


def test_the_users_own_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nsm").mkdir()
    (tmp_path / "nsm" / "config.toml").write_text("[box]\nprotect = false\n")
    assert load().protect is False
