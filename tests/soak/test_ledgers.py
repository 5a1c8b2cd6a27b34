"""Faults that the soak would notice: one of each kind in an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from soak.ledgers import Life, Lost, Reply, Wrong


def answer(token: str, n: int) -> Reply:
    return Reply(kind="ran", text=f"{token} {n}\n")


def lived(turns: int) -> tuple[Life, list[str]]:
    """A session that has answered so many turns, and its ledger."""
    life = Life("python", "x")
    ledger: list[str] = []
    for n in range(1, turns + 1):
        token, _ = life.ask()
        assert life.take(token, answer(token, n)) is None
        ledger.append(f"{token} {n}")
    return life, ledger


def text(ledger: list[str]) -> str:
    return "".join(f"{line}\n" for line in ledger)


def test_what_is_right_passes() -> None:
    life, ledger = lived(3)
    life.audit(text(ledger))


@pytest.mark.parametrize("n", [1, 3, 5])
def test_a_number_that_is_not_the_next(n: int) -> None:
    life, _ = lived(3)
    token, _ = life.ask()
    with pytest.raises(Wrong, match=f"number {n}"):
        life.take(token, answer(token, n))


def test_anothers_answer() -> None:
    life, _ = lived(1)
    first, _ = life.ask()
    second, _ = life.ask()
    with pytest.raises(Wrong, match="another's"):
        life.take(first, answer(second, 2))


def test_no_answer_and_output_twice() -> None:
    life, _ = lived(1)
    token, _ = life.ask()
    with pytest.raises(Wrong, match="no whole answer"):
        life.take(token, Reply(kind="ran", text=""))
    with pytest.raises(Wrong, match="no whole answer"):
        life.take(token, Reply(kind="ran", text=f"{token} step 0\n"))
    with pytest.raises(Wrong, match="doubled"):
        life.take(token, Reply(kind="ran", text=f"{token} 2\n{token} 2\n"))
    twice = f"{token} step 0\n" * 2
    with pytest.raises(Wrong, match="doubled"):
        life.take(token, replace(answer(token, 2), streamed=twice))


def test_a_session_that_was_replaced_is_lost_and_counts_again() -> None:
    life, _ = lived(2)
    token, _ = life.ask()
    lost = life.take(token, replace(answer(token, 1), created=True, replaced="it died"))
    assert lost == Lost("session", "it died")
    life.audit(f"{token} 1\n")
    token, _ = life.ask()
    assert life.take(token, Reply(kind="ended", text="gone")) == Lost("session", "gone")
    assert not life.begun


def test_an_interpreter_that_was_killed_between_and_within_executions() -> None:
    life, ledger = lived(2)
    token, _ = life.ask()
    assert life.take(token, replace(answer(token, 1), restarted="killed")) == Lost(
        "interpreter", "killed"
    )
    ledger.append(f"{token} 1")
    token, _ = life.ask()
    cut = Reply(kind="ran", text="", restarted="killed", failed=True)
    assert life.take(token, cut) == Lost("interpreter", "killed")
    ledger.append(f"{token} 2")
    token, _ = life.ask()
    assert life.take(token, answer(token, 1)) is None
    life.audit(text([*ledger, f"{token} 1"]))


def test_what_nobody_can_say_may_have_been_run_once() -> None:
    for ran in (False, True):
        life, ledger = lived(2)
        token, _ = life.ask()
        assert life.take(token, Reply(kind="unknown", text="")) is None
        ledger += [f"{token} 3"] if ran else []
        token, _ = life.ask()
        assert life.take(token, answer(token, 3 + ran)) is None
        life.audit(text([*ledger, f"{token} {3 + ran}"]))
        with pytest.raises(Wrong, match="2 times"):
            life.audit(text([*ledger, f"{token} {3 + ran}", f"{token} {4 + ran}"]))


def test_ledgers_that_must_not_be() -> None:
    life, ledger = lived(3)
    with pytest.raises(Wrong, match="its ledger None"):
        life.audit(text(ledger[:2]))
    with pytest.raises(Wrong, match="its ledger 7"):
        life.audit(text([*ledger[:2], ledger[2].replace(" 3", " 7")]))
    with pytest.raises(Wrong, match="in the order"):
        life.audit(text([ledger[1], ledger[0], ledger[2]]))
    with pytest.raises(Wrong, match="nobody asked"):
        life.audit(text([*ledger, "turn-0000000000000000 4"]))
    token, _ = life.ask()
    assert life.take(token, Reply(kind="refused", text="busy")) is None
    with pytest.raises(Wrong, match="was refused, and was run"):
        life.audit(text([*ledger, f"{token} 4"]))
