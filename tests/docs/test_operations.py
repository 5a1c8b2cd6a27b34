"""`docs/how-to/operations.md` names commands, numbers and events that there are."""

from __future__ import annotations

import re
from pathlib import Path

from nsm.cli.main import VERBS, load
from nsmd.audit import recorder
from nsmd.audit.journal import GATHER_S
from nsmd.config.reload import APPLIED
from nsmd.doctor.clients import PLACES
from nsmd.fdstore.holder_store import LINGER_S
from nsmd.host.logs import MAX_LOG_BYTES
from nsmd.model.settings import AuditSettings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/how-to/operations.md").read_text()


def section(title: str) -> str:
    """The text below a heading, up to the next one."""
    (text,) = re.findall(rf"(?ms)^#+ {re.escape(title)}$\n(.*?)(?=^#+ |\Z)", PAGE)
    return str(text)


def test_every_command_there_is() -> None:
    told = re.findall(r"(?m)(?:`|^ {4}|\$ |\| )nsm ([a-z]+)((?: --?[a-z-]+)*)", PAGE)
    assert len(told) > 40
    assert {verb for verb, _ in told} <= set(VERBS)
    for verb, options in told:
        assert set(options.split()) <= set(load(verb).parser().options()), (verb, options)


def test_the_audit_s_lines() -> None:
    told = section("Audit")
    rows = [line.split("|")[1] for line in told.splitlines() if line.startswith("| `")]
    events = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    source = (Path(recorder.__file__)).read_text() + (
        ROOT / "supervisor/nsmd/app/daemon.py"
    ).read_text()
    source += (ROOT / "supervisor/nsmd/audit/journal.py").read_text()
    said = re.findall(r'(?:"event": |say\(\s*)"(\w+)"', source)
    assert events == set(said) | recorder.PASSED_ON
    settings = AuditSettings()
    assert f"{settings.keep} of {settings.max_mb} MiB" in told
    assert GATHER_S == 0.25, "a quarter of a second, says the page"


def test_what_is_applied_at_once() -> None:
    told = section("Configure")
    for name in APPLIED:
        if "." not in name and name != "environments":
            assert f"`[{name}]`" in told, name


def test_numbers_of_elsewhere() -> None:
    assert f"larger than {MAX_LOG_BYTES >> 20} MiB" in PAGE
    assert f"{LINGER_S / 60:.0f} minutes without a supervisor" in PAGE


def test_every_client_that_the_doctor_knows() -> None:
    told = section("Install")
    for place in PLACES:
        assert place.client.split()[0] in told, place.client
