"""Agreements that a person gave, from one start to the next."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from box.plans import HOME, plan
from nsmbox.consent import agreements
from nsmbox.consent.agreements import digest_of
from nsmbox.consent.screen import differences
from nsmbox.model.plan import Mount, Network, Plan


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "nsm" / "boxes.json"


def digest_of_last() -> str | None:
    found = agreements.find(plan())
    return None if found is None else found.digest


def test_nothing_is_known_at_first_and_nothing_made_by_asking(file: Path) -> None:
    assert agreements.find(plan()) is None
    assert not file.parent.exists()


def test_an_agreement_is_remembered(file: Path) -> None:
    agreements.remember(plan())
    assert digest_of_last() == digest_of(plan())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(file.parent) == ["boxes.json"]
    assert "sk-ant" not in file.read_text()


def test_values_contents_and_arguments_change_nothing() -> None:
    agreements.remember(plan())
    other = plan(variables=[("LANG", "C")])
    other = replace(other, command=(other.command[0], "--resume"))
    found = agreements.find(other)
    assert found is not None
    assert found.digest == digest_of(other)


def test_another_program_in_the_same_box_needs_no_other_agreement() -> None:
    agreements.remember(plan())
    bash = replace(plan(), command=("/usr/bin/env", "bash"), starter=1)
    make = replace(bash, command=("/usr/bin/env", "make"))
    agreements.remember(bash)
    for given in (bash, make, plan()):
        found = agreements.find(given)
        assert found is not None
        assert agreements.covers(found, given)
    narrow = replace(make, network=Network(mode="none"))
    found = agreements.find(narrow)
    assert found is not None
    assert found.digest != digest_of(narrow)
    assert found.key[2] == "bash"
    agreements.remember(narrow)
    found = agreements.find(replace(narrow, sockets=False))
    assert found is not None
    assert found.digest == digest_of(narrow)


@pytest.mark.parametrize("of", ["programs", "secrets"])
def test_programs_and_secrets_that_are_added_are_asked_about(of: str) -> None:
    def given(*names: str) -> Plan:
        return replace(plan(), **{of: names})  # type: ignore[arg-type]

    def covered(these: Plan) -> bool:
        found = agreements.find(these)
        return found is not None and agreements.covers(found, these)

    agreements.remember(plan())
    assert not covered(given("one"))
    agreements.remember(given("one"))
    assert covered(given("one"))
    assert covered(plan())
    assert not covered(given("one", "two"))
    assert not covered(given("two"))


def test_changes_since_an_agreement_are_told() -> None:
    agreements.remember(plan())
    new = plan(mounts=[Mount(kind="bind", target="/srv/x", source="/srv/x")])
    found = agreements.find(new)
    assert found is not None
    old = found.plan()
    assert old is not None
    assert differences(old, agreements.essence(new), home=HOME) == ["+ can change /srv/x"]
    assert digest_of(old) == digest_of(plan())


def test_names_that_are_not_utf8_are_kept() -> None:
    odd = plan(os.fsdecode(b"/srv/\xff\n'\""))
    agreements.remember(odd)
    found = agreements.find(odd)
    assert found is not None
    assert found.digest == digest_of(odd)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b'{"agreements": 3}',
        b'{"agreements": [{"key": ["a"]}]}',
        b'{"agreements": [{"digest": "", "key": ["a", "b", "c"], "at": "x", "identity": 1}]}',
        b"[" * 100_000,
    ],
    ids=ascii,
)
def test_a_broken_file_holds_nothing_and_is_replaced(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700)
    file.write_bytes(content)
    assert agreements.find(plan()) is None
    agreements.remember(plan())
    assert digest_of_last() == digest_of(plan())


def test_an_identity_of_another_version_is_agreed_to_but_not_compared(file: Path) -> None:
    agreements.remember(plan())
    content = json.loads(file.read_text())
    content["agreements"][0]["identity"] = {"version": 2}
    file.write_text(json.dumps(content))
    found = agreements.find(plan())
    assert found is not None
    assert found.digest == digest_of(plan())
    assert found.plan() is None


def test_a_file_that_others_can_write_or_a_pipe_holds_nothing(file: Path) -> None:
    agreements.remember(plan())
    file.chmod(0o620)
    assert agreements.find(plan()) is None
    agreements.remember(plan())
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.unlink()
    os.mkfifo(file)
    assert agreements.find(plan()) is None


def test_few_are_kept_and_large_ones_without_their_content(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreements, "MAX_AGREEMENTS", 4)
    for number in range(agreements.MAX_AGREEMENTS + 3):
        agreements.remember(plan(f"/srv/{number}"))
    assert agreements.find(plan("/srv/2")) is None
    assert agreements.find(plan("/srv/3")) is not None
    large = plan(mounts=[Mount(kind="bind", target=f"/srv/{i:0999}") for i in range(50)])
    agreements.remember(large)
    found = agreements.find(large)
    assert found is not None
    assert (found.digest, found.plan()) == (digest_of(large), None)
    assert file.stat().st_size < agreements.MAX_FILE_BYTES


def test_a_half_written_file_is_no_hindrance(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir(mode=0o700)
    Path(f"{file}.nsm-new").write_text("half")
    agreements.remember(plan())
    assert os.listdir(file.parent) == ["boxes.json"]
    victim = tmp_path / "victim"
    victim.write_text("precious")
    os.symlink(victim, f"{file}.nsm-new")
    with pytest.raises(OSError, match="symbolic"):
        agreements.remember(plan())
    assert victim.read_text() == "precious"


PROJECTS = plan().directory


@pytest.mark.parametrize(
    ("more", "fewer"),
    [
        ([Mount(kind="mask", target=f"{PROJECTS}/.env", masks_file=True)], True),
        ([Mount(kind="ro-bind", target=f"{PROJECTS}/x", source=f"{PROJECTS}/x")], True),
        ([Mount(kind="mask", target="/usr/bin/age", masks_file=True)], True),
        ([Mount(kind="ro-bind", target="/run/nsm/lib/nsm", source="/opt/nsm")], True),
        ([Mount(kind="ro-bind", target=f"{PROJECTS}/x", source="/srv/x")], False),
        ([Mount(kind="ro-bind", target="/srv", source="/srv")], False),
        ([Mount(kind="bind", target=f"{PROJECTS}/keys", source=f"{PROJECTS}/keys")], False),
        ([Mount(kind="bind", target="/srv", source="/srv")], False),
    ],
)
def test_an_agreement_covers_boxes_that_guard_more(more: list[Mount], fewer: bool) -> None:
    agreements.remember(plan())
    found = agreements.find(plan())
    assert found is not None
    assert agreements.covers(found, plan(mounts=more)) is fewer


def test_an_agreement_covers_no_box_that_guards_less_or_has_more() -> None:
    agreements.remember(plan())
    found = agreements.find(plan())
    assert found is not None
    ordinary = plan()

    def without(part: str) -> Plan:
        return replace(
            ordinary, mounts=tuple(m for m in ordinary.mounts if not m.target.endswith(part))
        )

    for other in (
        without("/.git/hooks"),
        without("/keys"),
        plan(variables=[("GH_TOKEN", "x")]),
        plan(network=Network(mode="none")),
        replace(ordinary, sockets=False),
    ):
        assert not agreements.covers(found, other)
