"""The screen before a box starts: what it sums up, and names as a person is to read them."""

from __future__ import annotations

import os
from dataclasses import replace
from unicodedata import bidirectional, category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from box.plans import HOME, PROJECT, plan
from nsm.cli.render.formats import columns
from nsmbox.consent.readable import MASKED, legible, masked, names_secret, path, shortened
from nsmbox.consent.screen import details, differences, question, screen
from nsmbox.consent.summary import Outline, outline
from nsmbox.model.plan import Mount, Network, Plan

ORDINARY = """
A box for claude in ~/work/shop:
runs        /run/nsm/bin/claude --dangerously-skip-permissions --version
can change  ~/.claudebox  as ~/.claude
            ~/work/shop
protected   .git/hooks
network     all that this computer reaches, its own ports too
variables   ANTHROPIC_API_KEY=********  EDITOR=vim  HOME=/home/mia
            LANG=de_DE.UTF-8  NSM_SOCKET=/run/nsm/box/control.sock
            PATH=/run/n.../local/bin:/usr/bin:/bin  TERM=xterm-256color
            TMPDIR=/tmp  USER=mia  XDG_RUNTIME_DIR=/tmp
can read    ~/.nvm/v20  /usr  5 of /etc
hidden      all else in ~  keys  4 programs (age, gpg, ssh, ...)
limits      memory 12 GiB  HOME 2 GiB  /tmp 2 GiB  4096 processes

"""

EVIL = f"{HOME}/work/a\x1b[2J\x1b]0;t\x07\n  can change  nothing\u202e"


def full(directory: str = EVIL) -> Plan:
    """More than fits."""
    more = plan(
        directory,
        mounts=[
            *(Mount(kind="bind", target=f"/srv/{i}/" + "x" * i, source="/s") for i in range(60)),
            *(Mount(kind="mask", target=f"{directory}/secret{i}") for i in range(50)),
        ],
        variables=[(f"V{i}", "v" * i) for i in range(70)],
        network=Network(mode="allow", allow=tuple(f"h{i}.example.org" for i in range(40))),
    )
    return replace(more, programs=tuple(f"{'p' * 60}{i}" for i in range(64)))


def test_an_ordinary_plan() -> None:
    assert screen(plan(), home=HOME) == ORDINARY
    assert "sk-ant" not in details(plan(), home=HOME)


@pytest.mark.parametrize("size", [(80, 24), (60, 24), (40, 24), (200, 50), (132, 24)])
def test_the_screen_fits_any_plan(size: tuple[int, int]) -> None:
    changes = differences(plan(), full(), home=HOME)
    for given_plan, told in ((plan(), None), (full(), None), (full(), changes)):
        lines = screen(given_plan, home=HOME, size=size, changes=told, agreed_on="2026-01-01")
        assert len(lines.splitlines()) < size[1]
        assert max(map(columns, lines.splitlines())) < size[0]
    assert len(question(size)) < size[0]


def test_lines_without_room_are_counted_and_in_the_details() -> None:
    text = screen(full(), home=HOME)
    changed = text[text.index("can change  ") : text.index("protected")].splitlines()
    assert changed[0].endswith("~/.claudebox  as ~/.claude")
    shown = len(changed) - 1
    assert shown >= 2
    assert changed[-1].strip() == f"... and {62 - shown} more"
    everything = details(full(), home=HOME)
    for number in range(60):
        assert f"can change       /srv/{number}/" in everything
    assert "V69='" not in everything
    assert f"V69={'v' * 69}" in everything
    assert "h39.example.org" in everything


def test_names_cannot_act_or_look_like_lines_of_the_screen() -> None:
    told = differences(plan(), full(), home=HOME)
    for text in (
        screen(full(), home=HOME, changes=told, agreed_on="2026-01-01"),
        details(full(), home=HOME),
    ):
        assert all(line.isprintable() for line in text.splitlines())
        assert not any(line.startswith("  can change  nothing") for line in text.splitlines())
        assert r"\x1b" in text
    assert screen(full(), home=HOME).count("\ncan change ") == 1


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["bind", "ro-bind", "mask"]), st.text(min_size=1))),
    st.dictionaries(st.text(min_size=1), st.text()),
    st.binary(min_size=1).map(os.fsdecode),
)
def test_any_plan_fits_and_is_printable(
    mounts: list[tuple[str, str]], variables: dict[str, str], name: str
) -> None:
    made = plan(
        f"{HOME}/{name}",
        mounts=[Mount(kind=kind, target=f"/{at}", source="/s") for kind, at in mounts],  # type: ignore[arg-type]
        variables=list(variables.items()),
    )
    noted = replace(made, notes=tuple(variables) * 9, command=("/c", *variables.values()))
    lines = screen(noted, home=HOME, changes=[], agreed_on="2026-01-01").splitlines()
    assert all(line.isprintable() and columns(line) < 80 for line in lines)
    assert len(lines) < 24
    assert all(line.isprintable() for line in details(noted, home=HOME).splitlines())


def test_secrets_come_first_and_are_never_shown() -> None:
    given_plan = plan(variables=[("ZZ_TOKEN", "hunter2"), ("http_proxy", "http://u:hunter2@p")])
    for text in (screen(given_plan, home=HOME), details(given_plan, home=HOME)):
        assert "hunter2" not in text
    assert "ANTHROPIC_API_KEY=********  ZZ_TOKEN=********" in screen(given_plan, home=HOME)


def test_programs_of_the_host_are_said_near_the_top() -> None:
    given_plan = replace(plan(), programs=("deploy", "restart-db"))
    text = screen(given_plan, home=HOME)
    assert text.splitlines()[3] == (
        "can start   on this computer, outside of the box:  deploy  restart-db"
    )
    said = "can start on this computer, outside of the box: deploy, restart-db\n"
    assert said in details(given_plan, home=HOME)
    fewer = replace(plan(), programs=("deploy",))
    assert differences(fewer, given_plan, home=HOME) == [
        "+ can start restart-db, outside of the box"
    ]
    assert differences(given_plan, fewer, home=HOME) == ["- can start restart-db"]
    crowded = screen(full(), home=HOME, changes=differences(plan(), full(), home=HOME))
    assert "\nchanged     + can start ppp" in crowded
    assert "\ncan start   on this computer, outside of the box:" in crowded


def test_secrets_are_named() -> None:
    given_plan = replace(plan(), secrets=("github", "npm"))
    text = screen(given_plan, home=HOME)
    assert "\nsecrets     used without being seen:  github  npm\n" in text
    assert "uses secrets without seeing them: github, npm\n" in details(given_plan, home=HOME)
    fewer = replace(plan(), secrets=("npm",))
    assert differences(fewer, given_plan, home=HOME) == ["+ uses the secret github"]
    assert differences(given_plan, fewer, home=HOME) == ["- uses the secret github"]


def test_changes_come_first() -> None:
    old = plan()
    new = plan(
        mounts=[Mount(kind="bind", target="/srv/data", source="/srv/data")],
        variables=[("GH_TOKEN", "x")],
        network=Network(mode="none"),
    )
    assert differences(old, new, home=HOME) == [
        "+ can change /srv/data",
        "+ network: nothing",
        "- network: all that this computer reaches, its own ports too",
        "+ variable GH_TOKEN=********",
    ]
    assert differences(new, old, home=HOME) == [
        "+ network: all that this computer reaches, its own ports too",
        "- network: nothing",
        "- can change /srv/data",
        "- variable GH_TOKEN",
    ]
    text = screen(new, home=HOME, changes=differences(old, new, home=HOME), agreed_on="2026-01-01")
    assert text.splitlines()[1:4] == [
        "A box for claude in ~/work/shop. It has changed since you agreed to it on",
        "2026-01-01.",
        "changed     + can change /srv/data",
    ]


def test_protection_and_hiding_that_are_gone_are_said() -> None:
    old = plan()
    bare = replace(old, mounts=tuple(m for m in old.mounts if PROJECT + "/" not in m.target))
    assert differences(old, bare, home=HOME) == [
        "- protected ~/work/shop/.git/hooks",
        "- hidden ~/work/shop/keys",
    ]
    assert differences(bare, old, home=HOME) == [
        "+ protected ~/work/shop/.git/hooks",
        "+ hidden ~/work/shop/keys",
    ]


def test_a_change_that_gives_nothing_is_told_as_such() -> None:
    old = plan()
    swapped = replace(old, mounts=(old.mounts[0], old.mounts[2], old.mounts[1], *old.mounts[3:]))
    assert differences(old, swapped, home=HOME) == ["only how it is put together"]


def of(*mounts: Mount) -> Outline:
    return outline(replace(plan(), mounts=mounts))


def bind(target: str, source: str = "") -> Mount:
    return Mount(kind="bind", target=target, source=source or target)


def read_only(target: str, source: str = "") -> Mount:
    return Mount(kind="ro-bind", target=target, source=source or target)


HIDDEN = Mount(kind="mask", target="/p/keys")
OVER = Mount(kind="tmpfs", target="/home/x")
EMPTY = Mount(kind="tmpfs", target="/p")
LINK = Mount(kind="symlink", target="/p/x", source="y")
MADE = Mount(kind="ro-file", target="/p/.mcp.json", data=b"{}")


@pytest.mark.parametrize(
    ("mounts", "change", "read", "protected"),
    [
        pytest.param([bind("/p"), bind("/p/.git")], "/p", "", "", id="the same twice"),
        pytest.param([bind("/p", "/q"), bind("/p/a", "/q/a")], "/p", "", "", id="the same below"),
        pytest.param([bind("/p"), bind("/p/a", "/q")], "/p /p/a", "", "", id="another below"),
        pytest.param([read_only("/p"), bind("/p/out")], "/p/out", "/p", "", id="writable below"),
        pytest.param([bind("/p"), bind("/pp")], "/p /pp", "", "", id="a longer name"),
        pytest.param(
            [bind("/p"), HIDDEN, bind("/p/keys/own")], "/p /p/keys/own", "", "", id="below hidden"
        ),
        pytest.param(
            [bind("/home/x/a"), OVER, read_only("/home/x/b")], "", "/home/x/b", "", id="under"
        ),
        pytest.param([bind("/p"), read_only("/p")], "", "", "/p", id="read-only over it"),
        pytest.param(
            [bind("/p"), read_only("/p/.git/config")], "/p", "", "/p/.git/config", id="protected"
        ),
        pytest.param(
            [bind("/p"), read_only("/p/tool", "/opt/tool")], "/p", "/p/tool", "", id="elsewhere"
        ),
        pytest.param([bind("/p"), MADE], "/p", "", "/p/.mcp.json", id="a file that is made"),
        pytest.param([EMPTY, MADE], "", "", "", id="a file that is made in memory"),
        pytest.param([bind("/p"), LINK], "/p /p/x", "", "", id="a link"),
    ],
)
def test_places_are_changed_read_or_protected(
    mounts: list[Mount], change: str, read: str, protected: str
) -> None:
    found = of(*mounts)
    assert [place.target for place in found.change] == change.split()
    assert [place.target for place in found.read] == read.split()
    assert [place.target for place in found.protected] == protected.split()


def test_masks_and_empty_directories_hide() -> None:
    found = of(bind("/p"), HIDDEN, Mount(kind="tmpfs", target="/p/secret"))
    assert [place.target for place in found.hidden] == ["/p/keys", "/p/secret"]


SHOWN = {
    "plain-1.0_x/y@z": "plain-1.0_x/y@z",
    "": "''",
    "two words": "'two words'",
    "it's": r"'it\'s'",
    "back\\slash": r"'back\\slash'",
    "a\nb": r"'a\nb'",
    "\x1b[2Jx": r"'\x1b[2Jx'",
    "\x9b2Jx": r"'\x9b2Jx'",
    "x   ok": r"'x \x20\x20ok'",
    " x ": r"'\x20x\x20'",
    "\u202efdp": r"'\u202efdp'",
    "a\u2066b\u200bc": r"'a\u2066b\u200bc'",
    "שלום": r"'\u05e9\u05dc\u05d5\u05dd'",
    "١٢": r"'\u0661\u0662'",
    "\u3164\u2800": r"'\u3164\u2800'",
    "a\u2215b": r"'a\u2215b'",
    "\uff0fetc": r"'\uff0fetc'",
    "Grüße": "'Grüße'",
    "日本語": "'日本語'",
    "🚀": "'🚀'",
    "e\u0301": "'e\u0301'",
    "\u0301e": r"'\u0301e'",
    "e" + "\u0301" * 5: "'e" + "\u0301" * 2 + r"\u0301" + "\u0301" * 2 + "'",
    "x\ufe0f": r"'x\ufe0f'",
    os.fsdecode(b"caf\xe9"): r"'caf\xe9'",
    "\ud800": r"'\ud800'",
    "\U000e0041": r"'\U000e0041'",
}


@pytest.mark.parametrize("text", SHOWN, ids=ascii)
def test_text_is_shown_without_control_characters(text: str) -> None:
    assert legible(text) == SHOWN[text]


@settings(max_examples=80)
@given(st.text() | st.binary().map(os.fsdecode))
def test_nothing_that_acts_or_hides_is_left_of_any_text(text: str) -> None:
    shown = legible(text)
    for character in shown:
        assert character.isprintable()
        assert category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
        assert bidirectional(character) not in ("R", "AL", "AN", "RLE", "RLO", "RLI", "LRO")
    assert "  " not in shown
    assert columns(shortened(shown, 20)) <= 20


@settings(max_examples=80)
@given(st.text("ab '\\\nn\u202e~é"), st.text("ab '\\\nn\u202e~é"))
def test_different_names_look_different(one: str, other: str) -> None:
    assert (legible(one) == legible(other)) == (one == other)


def test_paths_below_home() -> None:
    assert path("/home/mia", "/home/mia") == "~"
    assert path("/home/mia/a b", "/home/mia") == "'~/a b'"
    assert path("/home/miau", "/home/mia") == "/home/miau"
    assert path("/etc", "/") == "/etc"
    assert path("/etc") == "/etc"


def test_long_text_keeps_its_beginning_and_more_of_its_end() -> None:
    assert shortened("/" + "a" * 50 + "/end", 21) == "/aaaaa...aaaaaaaa/end"
    assert shortened("short", 5) == "short"
    wide = shortened("日" * 30, 21)
    assert columns(wide) <= 21
    assert "..." in wide


SECRET = (
    "ANTHROPIC_API_KEY GITHUB_TOKEN AWS_SECRET_ACCESS_KEY DB_PASSWORD GOOGLE_CREDENTIALS "
    "npm_config__auth SESSION_COOKIE GH_PAT DB_PASS PGPASSWORD DB_PWD aws_secret my_key "
    "BORG_PASSPHRASE KeY"
).split()
OPEN = (
    "HOME TERM PATH LANG PWD OLD_PWD_DIR GIT_AUTHOR_NAME EDITOR PATH_INFO COMPASS PATTERN".split()
)


@pytest.mark.parametrize("name", SECRET)
def test_secrets_by_name(name: str) -> None:
    assert names_secret(name)
    assert masked(name, "s3cret") == MASKED
    assert masked(name, "") == ""


@pytest.mark.parametrize("name", OPEN)
def test_names_of_what_may_be_seen(name: str) -> None:
    assert not names_secret(name)
    assert masked(name, "seen") == "seen"


def test_marked_variables_are_hidden() -> None:
    assert masked("HARMLESS", "s3cret", secret=True) == MASKED


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("http://me:pw@proxy:3128", f"http://{MASKED}@proxy:3128"),
        ("http://me:p@w@proxy/x@y", f"http://{MASKED}@proxy/x@y"),
        ("postgres://u:p@h/d,redis://:q@r", f"postgres://{MASKED}@h/d,redis://{MASKED}@r"),
        ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_logins_in_urls_are_hidden(value: str, shown: str) -> None:
    assert masked("http_proxy", value) == shown
