"""Features that an older kernel (6.1) lacks are refused with the reason, not done halfway."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vm.machines import Person


def test_a_project_is_not_copied_on_write_there(ada: Person) -> None:
    """Directories of such a copy could not be removed or renamed (EIO)."""
    ada.start()
    code = f"{ada.bin}/nsm run --project-mode overlay -e bash 'touch /project/new'"
    done = ada.shell(f"mkdir -p ~/p && cd ~/p && {code}")
    assert done.status == 125, done
    assert "cannot be shown copy-on-write" in done.stderr, done
    assert ada.shell("ls ~/p").stdout == ""
