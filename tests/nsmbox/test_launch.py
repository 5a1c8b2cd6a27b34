"""The last steps before a box: what is checked, made, closed and given on."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from box.facts_made import request
from box.world import HOME, PROJECT, have_git
from nsmbox.model.plan import BoxError
from nsmbox.start import launch
from selection import one_in

if TYPE_CHECKING:
    from box.world import World

REFUSES = """\
#!/bin/sh
echo "bwrap: No permissions to create new namespace, likely because the kernel does not allow\
 non-privileged user namespaces." >&2
exit 1
"""

TELLS = f"""\
#!{os.path.realpath(sys.executable)} -IS
import os, signal, sys
listed = int(sys.argv[sys.argv.index("--args") + 1])
words = os.read(listed, 1 << 20).decode().split("\\0")[:-1]
print(sys.argv)
print(open("/proc/self/environ").read())
print(words)
with os.scandir("/proc/self/fd") as entries:
    print(len([entry for entry in entries if int(entry.name) > 2]) - 1)
print([os.read(int(words[at + 1]), 99) for at in range(len(words)) if "-data" in words[at]])
names = ("SIGINT", "SIGQUIT", "SIGPIPE", "SIGXFSZ", "SIGTERM")
print([name for name in names if signal.getsignal(getattr(signal, name)) == signal.SIG_IGN])
"""

BECOMES = """\
import os, sys
from nsmbox.host import nsm_itself
from nsmbox.model.plan import BoxError, Mount, Network, Plan, Variable
from nsmbox.start import launch
command = nsm_itself.starter(("/bin/true", "x y"), proxy=False)
plan = Plan(
    profile="shell",
    mounts=(Mount(**eval(sys.argv[2])),),
    variables=(Variable(name="API_KEY", value="k", secret=True),),
    network=Network(),
    command=command,
    starter=len(command) - 2,
    directory="/",
)
for name in ("/", "/etc"):
    os.set_inheritable(os.open(name, os.O_RDONLY), True)
try:
    launch.become(plan, sys.argv[1])
except BoxError as error:
    print(error.message, error.hint, sep="\\n")
"""
"""Becomes a program in the place of bwrap, for a plan with one mount."""


def becomes(bwrap: str, **mount: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BECOMES, bwrap, repr(mount)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


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


def test_nothing_is_tried_on_an_ordinary_host(tmp_path: Path) -> None:
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


def test_bwrap_gets_the_plans_arguments(tmp_path: Path) -> None:
    """The arguments and files by descriptors, no variables, and nothing that was open before."""
    done = becomes(program(tmp_path, TELLS), kind="ro-file", target="/file", data=b"content")
    argv, variables, words, descriptors, files, ignored = done.stdout.splitlines()
    assert argv.endswith("'--', '/bin/true', 'x y']")
    assert "API_KEY" not in argv
    assert variables == ""
    assert "'--setenv', 'API_KEY', 'k'" in words
    assert files == "[b'content']"
    assert descriptors == "7", "arguments, file, filter, its words, stderr, two of the gate"
    assert "SIGTERM" not in ignored
    assert ignored.startswith("['SIGINT', 'SIGQUIT'")


def test_a_bwrap_that_is_none(world: World) -> None:
    world.write("/home/ada/bin/bwrap", "no program\n", 0o755)
    found = world.variables["PATH"]
    done = world.box("true", variables={"PATH": f"/home/ada/bin:{found}"})
    assert done.returncode == 1
    assert "/home/ada/bin/bwrap cannot be executed" in done.stderr


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("rmdir {0}; mkdir {0}", "the box does not start while another program replaces /hooks."),
        ("rmdir {0}; ln -s / {0}", "a symbolic link has come on the way to it"),
        (":", "The jail did not start: bwrap: some words"),
    ],
)
def test_nsm_explains_why_bwrap_fails(tmp_path: Path, does: str, said: str) -> None:
    (tmp_path / "hooks").mkdir()
    does = does.format(tmp_path / "hooks")
    fails = program(tmp_path, f"#!/bin/sh\n{does}\necho bwrap: some words >&2\nexit 1\n")
    source = str(tmp_path / "hooks")
    done = becomes(fails, kind="ro-bind", source=source, target="/hooks", linkless=True)
    assert said in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("times", one_in(2, [9, 1]))
def test_a_file_that_the_host_replaces_meanwhile(world: World, times: int) -> None:
    """Replace it as `git config` and editors do, whatever the box is doing."""
    have_git(world)
    bwrap = shutil.which("bwrap")
    script = f"""\
        #!/bin/sh
        # This takes --ro-bind-fd, as what it becomes does.
        echo >>{HOME}/starts
        if [ "$(wc -l <{HOME}/starts)" -le {times} ]; then
            cp {PROJECT}/.git/config {HOME}/config && mv {HOME}/config {PROJECT}/.git/config
        fi
        exec {bwrap} "$@"
        """
    world.write(f"{HOME}/bin/bwrap", textwrap.dedent(script), 0o755)
    done = world.box(
        *("sh", "-c", "echo here; git config a.b c; git status -s"),
        variables={"PATH": f"{HOME}/bin:{world.variables['PATH']}"},
    )
    assert done.stdout == "here\n", done.stderr
    assert "bwrap" not in done.stderr
