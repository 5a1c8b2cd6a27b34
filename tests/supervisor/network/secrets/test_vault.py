"""Values are read once, and again after a server has refused them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from nsmd.model.secrets import SecretRule, parse_secret
from nsmd.network.secrets import vault as vaults
from nsmd.network.secrets.vault import Vault, read_value

if TYPE_CHECKING:
    from pathlib import Path

HOST = ("a.example", 443)


async def read(secret: SecretRule) -> str:
    return read_value(secret.source, os.environ)


async def make_vault(directory: Path) -> Vault:
    source = f"command: sh -c 'echo >>{directory}/asked; cat {directory}/token'"
    (directory / "token").write_text("the-first-token")
    return await Vault.read([parse_secret("key", source, [HOST[0]], ["env: KEY"])], {}, read)


def asked(directory: Path) -> int:
    return len((directory / "asked").read_text().splitlines())


async def test_a_refused_value_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = await make_vault(tmp_path)
    stand_in = vault.stand_ins["key"]
    (tmp_path / "token").write_text("another-token-of-now")
    await vault.refresh(["key"])
    assert asked(tmp_path) == 1
    vault.refused(["key"])
    await vault.refresh(["key"])
    assert asked(tmp_path) == 1  # too soon
    later = time.monotonic() + vaults.LEAST_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await vault.refresh(["key"])
    await vault.refresh(["key"])
    assert asked(tmp_path) == 2
    assert vault.usable(*HOST)["key"] == (stand_in, "another-token-of-now")
    for value in (b"the-first-token", b"another-token-of-now"):
        assert vault.patterns.replace(value) == stand_in.encode()


async def test_a_source_that_fails_later_leaves_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vault = await make_vault(tmp_path)
    (tmp_path / "token").unlink()
    vault.refused(["key"])
    later = time.monotonic() + vaults.LEAST_AGE_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    await vault.refresh(["key"])
    assert vault.usable(*HOST)["key"][1] == "the-first-token"
    assert capsys.readouterr().err == (
        "secret key keeps its old value: sh failed (exit code 1); run it yourself to see why\n"
    )


async def test_a_revoked_secret_is_usable_nowhere(tmp_path: Path) -> None:
    vault = await make_vault(tmp_path)
    vault.revoke("key")
    vault.revoke("nothing")
    assert vault.usable(*HOST) == {}
    assert vault.added_headers(*HOST) == []
    assert b"first" not in vault.patterns.replace(b"the-first-token")


async def test_values_that_are_replaced_often_are_searched_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = await make_vault(tmp_path)
    stand_in, now = vault.stand_ins["key"], time.monotonic()

    async def replace_by(number: int, after_s: float) -> None:
        nonlocal now
        now += after_s
        monkeypatch.setattr(time, "monotonic", lambda: now)
        (tmp_path / "token").write_text(f"token-number-{number:02}")
        vault.refused(["key"])
        await vault.refresh(["key"])

    for number in range(12):
        await replace_by(number, vaults.LEAST_AGE_S + 1)
    for number in range(12):
        value = f"token-number-{number:02}".encode()
        assert vault.patterns.replace(value) == stand_in.encode()
    await replace_by(12, vaults.FORMER_S)
    values = [f"token-number-{number:02}".encode() for number in range(13)]
    found = [vault.patterns.replace(value) != value for value in values]
    assert found == [False] * 8 + [True] * 5
