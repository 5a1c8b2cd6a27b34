"""References: what nix is asked for, and names for what they give."""

from __future__ import annotations

import pytest

from nsm.wire.errors import BadRequestError
from nsmd.model.packages import (
    check_reference,
    likely_name,
    local_directory,
    shown_reference,
    why_no_reference,
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "names no flake"),
        ("#x", "names no flake"),
        ("--expr", "begins with '-'"),
        ("-f", "begins with '-'"),
        ("a b#c", "spaces"),
        ("github:me/envs#x\n--impure", "control characters"),
        ("github:me/envs#\x1b[31m", "control characters"),
        (".#x", "not absolute"),
        ("./envs#x", "not absolute"),
        ("..", "not absolute"),
        ("path:envs#x", "not absolute"),
        ("path:./envs#x", "not absolute"),
        ("git+file:./envs#x", "not absolute"),
        ("git+file:envs#x", "not absolute"),
        ("~/envs#x", "not absolute"),
        ("x" * 3000, "characters"),
        ("git+file:///home/me/envs?ref=main#x", "now: leave out ref"),
        ("git+file:/home/me/envs?submodules=1&dir=a&shallow=1#x", "leave out shallow, submodules"),
        ("/home/me/envs?rev=#x", "leave out rev"),
    ],
)
def test_an_unsafe_reference_is_refused(text: str, why: str) -> None:
    assert why in (why_no_reference(text) or "")
    with pytest.raises(BadRequestError, match="github:OWNER"):
        check_reference(text)


@pytest.mark.parametrize(
    ("reference", "directory"),
    [
        ("/home/me/envs#x", "/home/me/envs"),
        ("/home/me/envs?dir=a/b#x", "/home/me/envs/a/b"),
        ("git+file:///home/me/envs#x", "/home/me/envs"),
        ("git+file:/home/me/my%20envs?dir=a#x", "/home/me/my envs/a"),
        ("path:/home/me/envs#x", None),
        ("git+https://example.org/envs.git#x", None),
        ("github:me/envs#x", None),
        ("nixpkgs#hello", None),
        ("path:/home/me/my%20envs#x^out", None),
    ],
)
def test_directories_of_this_machine_are_found(reference: str, directory: str | None) -> None:
    assert check_reference(reference) == reference
    assert local_directory(reference) == directory


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("github:me/envs#data-science", "data-science"),
        ("github:me/envs#packages.x86_64-linux.Data_Science", "data-science"),
        ("github:me/envs", "envs"),
        ("github:me/envs#default", "envs"),
        ("path:/home/me/my-flake?dir=x", "my-flake"),
        ("path:/home/me/my-flake/#x^out", "x"),
        ("path:/", "environment"),
        ("path:/a#\N{GREEK SMALL LETTER ALPHA}", "environment"),
    ],
)
def test_a_name_before_it_has_its_own(reference: str, name: str) -> None:
    assert likely_name(reference) == name


def test_passwords_are_not_shown() -> None:
    assert (
        shown_reference("git+https://me:secret@example.org/x#y")
        == "git+https://...@example.org/x#y"
    )
    assert shown_reference("git+ssh://git@example.org/a@b") == "git+ssh://...@example.org/a@b"
    assert shown_reference("path:/home/me@work/x#y") == "path:/home/me@work/x#y"
