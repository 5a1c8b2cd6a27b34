"""The last steps before a box: what is checked, made, closed and given on."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box.facts_made import request
from nsmbox.model.plan import BoxError
from nsmbox.start import launch

if TYPE_CHECKING:
    from box.world import World

REFUSES = """\
#!/bin/sh
echo "bwrap: No permissions to create new namespace, likely because the kernel does not allow\
 non-privileged user namespaces." >&2
exit 1
"""

TELLS = f"""\
#!{sys.executable} -IS
import os, signal, sys
listed = int(sys.argv[sys.argv.index("--args") + 1])
words = os.read(listed, 1 << 20).decode().split("\\0")[:-1]
print(sys.argv)
print(open("/proc/self/environ").read())
print(words)
with os.scandir("/proc/self/fd") as entries:
    print(len([entry for entry in entries if entry.name > "2"]) - 1)
print([os.read(int(words[at + 1]), 99) for at in range(len(words)) if "-data" in words[at]])
names = ("SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ", "SIGTERM")
print([name for name in names if signal.getsignal(getattr(signal, name)) == signal.SIG_IGN])
"""

BECOMES = """\
import os, signal, sys
from nsmbox.start import launch
from nsmbox.model.plan import Mount, Network, Plan, Variable
plan = Plan(
    profile="shell",
    mounts=(Mount(kind="ro-file", target="/file", data=b"content"),),
    variables=(Variable(name="API_KEY", value="k", secret=True),),
    network=Network(),
    command=("/bin/true", "x y"),
    directory="/",
)
for name in ("/", "/etc"):
    os.set_inheritable(os.open(name, os.O_RDONLY), True)
launch.become(plan, sys.argv[1])
"""


def program(directory: Path, text: str) -> str:
    path = directory / "bwrap"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def host(directory: Path, **settings: str) -> str:
    for name, value in settings.items():
        path = directory / "proc/sys" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return str(directory)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"user__max_user_namespaces": "0"}, "user.max_user_namespaces"),
        ({"kernel__unprivileged_userns_clone": "0"}, "kernel.unprivileged_userns_clone"),
        ({"kernel__apparmor_restrict_unprivileged_userns": "1"}, "AppArmor"),
    ],
)
def test_forbidden_namespaces_are_said_with_the_fix(
    tmp_path: Path, settings: dict[str, str], names: str
) -> None:
    with pytest.raises(BoxError, match=names) as caught:
        launch.check_namespaces(program(tmp_path, REFUSES), host(tmp_path, **settings))
    assert "sudo" in caught.value.hint
    launch.check_namespaces(program(tmp_path, "#!/bin/sh\n"), str(tmp_path))  # has an exception


def test_where_nothing_speaks_against_it_nothing_is_tried(tmp_path: Path) -> None:
    settings = {"user__max_user_namespaces": "15000", "kernel__unprivileged_userns_clone": "1"}
    launch.check_namespaces("/nowhere/bwrap", host(tmp_path, **settings))


def test_state_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    profile = request("claude").profile
    for _ in range(2):
        launch.make_state(profile, str(tmp_path))
    assert stat.S_IMODE((tmp_path / ".claudebox").stat().st_mode) == 0o700


def test_state_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / ".claudebox").write_text("a file")
    with pytest.raises(BoxError, match=r"\.claudebox cannot be made: File exists"):
        launch.make_state(request("claude").profile, str(tmp_path))


def test_what_bwrap_gets(tmp_path: Path) -> None:
    """Its arguments and files by descriptors, no variables, and nothing that was open before."""
    done = subprocess.run(
        [sys.executable, "-c", BECOMES, program(tmp_path, TELLS)],
        capture_output=True,
        text=True,
        check=True,
    )
    argv, variables, words, descriptors, files, ignored = done.stdout.splitlines()
    assert argv.endswith("'--', '/bin/true', 'x y']")
    assert "API_KEY" not in argv
    assert variables == ""
    assert "'--setenv', 'API_KEY', 'k'" in words
    assert files == "[b'content']"
    assert descriptors == "3", "arguments, file and filter"
    assert "SIGTERM" not in ignored
    assert ignored.startswith("['SIGINT', 'SIGQUIT'")


def test_a_bwrap_that_is_none(world: World) -> None:
    world.write("/home/ada/bin/bwrap", "no program\n", 0o755)
    found = world.variables["PATH"]
    done = world.box("true", variables={"PATH": f"/home/ada/bin:{found}"})
    assert done.returncode == 1
    assert "/home/ada/bin/bwrap cannot be executed" in done.stderr
