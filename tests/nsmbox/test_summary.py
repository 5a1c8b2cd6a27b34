"""Summary of a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from box.plans import HOME, PROJECT, plan
from nsmbox.consent.summary import Outline, SummaryItem, outline
from nsmbox.model.plan import Mount


def of(*mounts: Mount) -> Outline:
    return outline(replace(plan(), mounts=mounts))


def bind(target: str, source: str = "") -> Mount:
    return Mount(kind="bind", target=target, source=source or target)


def read_only(target: str, source: str = "") -> Mount:
    return Mount(kind="ro-bind", target=target, source=source or target)


def test_an_ordinary_plan() -> None:
    found = outline(plan())
    assert found.change == (
        SummaryItem(target=f"{HOME}/.claude", source=f"{HOME}/.claudebox"),
        SummaryItem(target=PROJECT, source=PROJECT),
    )
    assert [place.target for place in found.protected] == [f"{PROJECT}/.git/hooks"]
    assert [place.target for place in found.read][-1] == f"{HOME}/.nvm/v20"
    assert len(found.read) == 7
    assert [place.target for place in found.hidden] == [
        *(f"/usr/bin/{name}" for name in ("ssh", "gpg", "sudo", "age")),
        f"{PROJECT}/keys",
    ]


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
