"""Settings and limits of boxes: read without pydantic, checked by the supervisor as well."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import pytest

from nsmbox.cli import common
from nsmbox.model import settings
from nsmbox.model.plan import BOUNDS, MODES, BoxError, BoxLimits, Network, complete_limits
from nsmbox.model.settings import BoxSettings, load, parse
from nsmd.config import config_file
from nsmd.model import settings as of_supervisor

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


def test_the_older_spelling_of_a_list_is_read_by_both() -> None:
    older = FULL.replace(b"net = [", b"net = { allow = [").replace(b'443"]', b'443"] }')
    assert older != FULL
    assert parse(older, "c") == parse(FULL, "c")
    assert config_file.parse(older, "c") == config_file.parse(FULL, "c")


def test_the_supervisor_has_the_same_keys_and_defaults() -> None:
    ours = {field.name for field in dataclasses.fields(BoxSettings)}
    assert {field.name for field in dataclasses.fields(of_supervisor.BoxDefaults)} == ours
    default, its = BoxSettings(), of_supervisor.Settings().box
    assert MODES[str(its.net)] == default.net.mode
    for name in ours - {"net"}:
        assert getattr(its, name) == getattr(default, name)


@pytest.mark.parametrize("data", WRONG, ids=lambda data: data.decode())
def test_mistakes_are_told_by_key_here_and_by_the_supervisor(data: bytes) -> None:
    with pytest.raises(BoxError) as refused:
        parse(data, "c.toml")
    assert refused.value.message.startswith(f"c.toml: {WRONG[data]}")
    assert refused.value.exit_code == 2
    assert "nsm config check" in refused.value.hint
    with pytest.raises(config_file.ConfigError) as told:
        config_file.parse(data, "c.toml")
    assert WRONG[data].partition(":")[0] in told.value.problems[0]
    assert len(told.value.problems) == 1


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


def test_failures_are_told_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise BoxError("no \x1b[2Jclaude", hint="Install it.", exit_code=127)

    def is_interrupted() -> int:
        raise KeyboardInterrupt

    def is_full() -> int:
        raise OSError(28, "No space left on device", "/tmp/x")

    assert common.guarded("claudebox", fails) == 127
    assert capsys.readouterr().err == "claudebox: no \\x1b[2Jclaude\nInstall it.\n"
    assert common.guarded("claudebox", is_interrupted) == 130
    assert common.guarded("nsm box", is_full) == 1
    assert "nsm box: /tmp/x: No space left on device\nMake room there.\n" in capsys.readouterr().err
    assert common.guarded("nsm box", lambda: 0) == 0


def test_defaults_suit_the_machine() -> None:
    assert complete_limits({}, 24000) == BoxLimits(
        memory_mb=18000, home_mb=3000, tmp_mb=3000, shm_mb=3000
    )
    small = complete_limits({"tmp_mb": 7, "home_mb": None}, 512)
    assert (small.memory_mb, small.home_mb, small.tmp_mb) == (1024, 1024, 7)


def test_an_option_is_a_name_and_a_number() -> None:
    assert common.limit("tmp_mb=64") == ("tmp_mb", 64)
    for text in (
        "tmp_mb",
        "tmp_mb=",
        "tmp_mb=-1",
        "tmp_mb=1e3",
        "tmp_mb=0",
        "swap=1",
        "=1",
        "",
        "tmp_mb=\u0664",
    ):
        with pytest.raises(ValueError, match=r"names are|expected a number"):
            common.limit(text)
    for name, (least, most) in BOUNDS.items():
        assert common.limit(f"{name}={most}") == (name, most)
        with pytest.raises(ValueError, match=f"expected a number from {least} to {most}"):
            common.limit(f"{name}={most + 1}")
