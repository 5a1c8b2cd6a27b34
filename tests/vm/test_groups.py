"""The tests of control groups that need real ones, where there are such."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vm.machines import Person

TIMEOUT_S = 900.0


def test_the_tests_of_real_control_groups(ada: Person) -> None:
    """They move themselves into a scope of the user's manager."""
    pytest = f"{ada.bin}/python -m pytest -q tests/supervisor/jail/limits/test_real.py"
    line = f"cd {ada.clone} && NSM_TEST_GROUPS=1 {pytest}"
    done = ada.shell(line, timeout_s=TIMEOUT_S)
    assert done.status == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
