"""Summary of a plan."""

from __future__ import annotations

from dataclasses import replace

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


def test_the_same_seen_twice_is_said_once() -> None:
    assert len(of(bind("/p"), bind("/p/.git")).change) == 1
    assert len(of(bind("/p", "/q"), bind("/p/.git", "/q/.git")).change) == 1
    assert len(of(bind("/"), bind("/p")).change) == 1


def test_another_place_below_is_said() -> None:
    assert len(of(bind("/p"), bind("/p/.git", "/elsewhere/.git")).change) == 2
    assert len(of(read_only("/p"), bind("/p/out")).change) == 1
    assert len(of(bind("/p"), bind("/pp")).change) == 2


def test_below_something_hidden_it_is_there_again() -> None:
    hidden = Mount(kind="mask", target="/p/keys")
    found = of(bind("/p"), hidden, bind("/p/keys/own"))
    assert [place.target for place in found.change] == ["/p", "/p/keys/own"]
    assert [place.target for place in found.hidden] == ["/p/keys"]


def test_what_later_mounts_lie_over_is_not_there() -> None:
    found = of(bind("/home/x/a"), Mount(kind="tmpfs", target="/home/x"), read_only("/home/x/b"))
    assert found.change == ()
    assert [place.target for place in found.read] == ["/home/x/b"]
    assert of(bind("/p"), read_only("/p")).change == ()


def test_read_only_elsewhere_is_read_and_the_same_place_protected() -> None:
    found = of(bind("/p"), read_only("/p/.git/config"), read_only("/p/tool", "/opt/tool"))
    assert [place.target for place in found.protected] == ["/p/.git/config"]
    assert [place.source for place in found.read] == ["/opt/tool"]


def test_made_files_over_the_hosts() -> None:
    made = Mount(kind="ro-file", target="/p/.mcp.json", data=b"{}")
    assert [place.target for place in of(bind("/p"), made).protected] == ["/p/.mcp.json"]
    assert of(Mount(kind="tmpfs", target="/p"), made).protected == ()
    link = Mount(kind="symlink", target="/p/x", source="y")
    assert [place.target for place in of(bind("/p"), link).change] == ["/p", "/p/x"]


def test_an_empty_directory_over_the_hosts_hides() -> None:
    found = of(bind("/p"), Mount(kind="tmpfs", target="/p/secret"))
    assert [place.target for place in found.hidden] == ["/p/secret"]
