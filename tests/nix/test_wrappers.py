"""Programs of artifacts: what is in their jails, and what callers and supervisors ask of them."""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import standin
from agent_process import AgentProcess, Interpreter, json_of
from nsm.jail.seccomp import filter_program
from nsmd.jail.arguments import SYNTHETIC_FILES
from nsmd.jail.starting import memory_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

pytestmark = pytest.mark.jail

RUN_TIMEOUT_S = 60
"""Time limit for one execution, on a machine that runs everything at once."""


@pytest.fixture(scope="session")
def bash(built: Callable[[str], Path]) -> Path:
    return built("presets.bash")


@pytest.fixture(scope="session")
def python(built: Callable[[str], Path]) -> Path:
    return built("presets.python")


@pytest.fixture(scope="session")
def node(built: Callable[[str], Path]) -> Path:
    return built("presets.node")


@pytest.fixture
def project() -> Iterator[Path]:
    """A directory with a name that shells stumble over, where the jails' user can read it."""
    path = Path("/var/tmp", f'nsm a\'b "c"\n$(id)-{os.getpid()}')
    path.mkdir()
    path.chmod(0o777)  # only the bind keeps code from it
    (path / "file").write_text("theirs")
    (path / "file").chmod(0o666)
    try:
        yield path
    finally:
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()


def run(
    artifact: Path,
    code: str | bytes,
    variables: Mapping[str, str] | None = None,
    *,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """One execution by `bin/run`, with only these variables."""
    return subprocess.run(
        [str(artifact / "bin/run")],
        input=code.decode() if isinstance(code, bytes) else code,
        env=dict(variables or {}),
        pass_fds=pass_fds,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )


def answer(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command that succeeded."""
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


# ------------------------------------------------------------------------------ what a jail shows

SECRETS = {"SECRET": "s3cret", "HOME": "/root", "LANG": "xx", "PYTHONPATH": "/x"}

LOOK = """
import json, os, socket
def lines(path):
    with open(path) as file: return file.read().splitlines()
def reason(function, *arguments):
    try: function(*arguments)
    except OSError as error: return error.strerror
def connect(address):
    with socket.socket() as one: one.connect(address)
status = dict(line.split(":\\t", 1) for line in lines("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "variables": sorted(os.environ.values()),
    "root": sorted(os.listdir("/")),
    "descriptors": len(os.listdir("/proc/self/fd")),
    "capabilities": {status[name] for name in status if name.startswith("Cap")} == {"0" * 16},
    "no_new_privs": status["NoNewPrivs"],
    "filter": [line.split()[1] for line in lines("/proc/1/status") if line.startswith("Seccomp:")],
    "user": [os.getuid(), os.getgid()],
    "etc": {name: open("/etc/" + name).read() for name in os.listdir("/etc")},
    "starter": [reason(open, "/proc/1/environ"), open("/proc/1/cmdline").read()],
    "network": [reason(connect, ("192.0.2.1", 80)), reason(socket.getaddrinfo, "example.org", 80)],
    "write": [reason(open, path, "w") for path in ("/x", "/dev/x", "/etc/x", "/bin/x")],
    "host": os.uname().nodename,
    "kernel": [reason(open, path, "w") for path in ("/proc/sys/kernel/core_pattern",)],
}))
"""


@pytest.fixture(scope="session")
def seen(python: Path) -> dict[str, Any]:
    """View of code that was started with a secret in the environment and open descriptors."""
    secret, other = os.pipe()
    try:
        done = run(python, LOOK, SECRETS, pass_fds=(secret, other))
    finally:
        os.close(secret)
        os.close(other)
    answered: dict[str, Any] = json.loads(answer(done))
    return answered


def test_variables_are_ours(bash: Path) -> None:
    told: dict[str, str] = json.loads(answer(run(bash, "jq -n env", SECRETS)))
    path = told.pop("PATH").split(":")
    for shell in ("PWD", "SHLVL", "_"):  # the runner's own
        told.pop(shell, None)
    assert told == {
        "HOME": "/workspace",
        "LANG": "C.UTF-8",
        "LOGNAME": "user",
        "TERM": "dumb",
        "TMPDIR": "/workspace",
        "USER": "user",
    }
    store = str(bash.resolve().parent)
    assert [os.path.basename(folder) for folder in path] == ["bin"] * 4
    assert [folder.startswith(store) for folder in path] == [True, True, True, False]


def test_a_jail_has_the_files_of_all_jails_and_none_of_the_host(
    seen: dict[str, Any], python: Path
) -> None:
    store = python.resolve().parts[1]
    assert set(seen["root"]) == {"bin", "dev", "etc", "proc", "tmp", "workspace", store}
    assert seen["etc"] == {os.path.basename(path): text for path, text in SYNTHETIC_FILES}
    assert set(seen["write"]) == {"Read-only file system"}


def test_code_has_no_privileges_and_no_network(seen: dict[str, Any]) -> None:
    assert seen["capabilities"] is True
    assert seen["no_new_privs"] == "1"
    assert seen["filter"] == ["2"], "PID 1 included"
    assert seen["user"] == [1000, 1000]
    assert seen["kernel"] == ["Permission denied"]
    refused, unknown = seen["network"]
    assert refused == "Network is unreachable"
    assert unknown is not None


def test_the_filter_is_that_of_all_jails(bash: Path) -> None:
    for name in ("run", "session-run"):
        text = (bash / "bin" / name).read_text()
        (path,) = set(re.findall(r"/[^\s()<]+-nsm-filter", text))
        assert Path(path).read_bytes() == filter_program(platform.machine())


def test_code_learns_nothing_of_its_starter(seen: dict[str, Any]) -> None:
    _, command = seen["starter"]
    # The runner is nobody's secret; bwrap's command line has the project's path in it.
    assert "bwrap" not in command
    assert "s3cret" not in json.dumps(seen)
    assert seen["descriptors"] == 4  # three and the directory that was listed
    assert seen["host"] == "nsm"


def test_keys_of_the_host_are_covered(bash: Path) -> None:
    assert answer(run(bash, "cat /proc/keys 2>/dev/null || :")) == ""


def test_the_closure_alone_is_shown(place: standin.Place, python: Path) -> None:
    """Not a path of the store more than the artifact needs, in one execution and in a session."""
    code = f"import os; print('\\n'.join(os.listdir({str(place.store)!r})))"
    needed = standin.nix_tool(place, "nix-store", "--query", "--requisites", str(python.resolve()))
    with closing(session(python)) as agent:
        in_session = agent.python(code).stdout.split()
    makes_it = {"session-run", "template-run", "nsm-filter"}
    for listed, others in (
        (answer(run(python, code)).split(), {"run", "nsm-agent-python"}),
        (in_session, {"run"}),
    ):
        names = {name.split("-", 1)[1] for name in listed}
        assert set(listed) <= {os.path.basename(path) for path in needed.split()}
        # What makes the jail, and what makes the other programs, is not in it.
        assert not names & (makes_it | others)
        assert not any(name.startswith(("bubblewrap", "jq", "git", "node")) for name in names)


def test_sizes(bash: Path) -> None:
    places = "/workspace /tmp /dev/shm"
    code = f"df -k --output=size {places} | tail -n 3"
    assert answer(run(bash, code)).split() == ["524288", "262144", "65536"]
    sizes = {"NSM_WORKSPACE_MB": "9", "NSM_TMP_MB": "08", "NSM_SHM_MB": "7"}
    assert answer(run(bash, code, sizes)).split() == ["9216", "8192", "7168"]


# ---------------------------------------------------------------------------- what is asked of it


def test_the_project_is_read_only(bash: Path, project: Path) -> None:
    code = "cat /project/file && ! touch /project/file 2>&1"
    assert answer(run(bash, code, {"PROJECT_DIR": str(project)})).split(": ") == [
        "theirstouch",
        "cannot touch '/project/file'",
        "Read-only file system\n",
    ]


def test_the_project_elsewhere(bash: Path, project: Path) -> None:
    variables = {"PROJECT_DIR": str(project), "PROJECT_MOUNT": "/home/me/my project"}
    assert answer(run(bash, "cd '/home/me/my project' && cat file", variables)) == "theirs"


def test_the_project_by_descriptor(bash: Path, project: Path) -> None:
    """Versions of bwrap that cannot do that show what the path names."""
    descriptor = os.open(project, os.O_PATH | os.O_DIRECTORY)
    try:
        variables = {"PROJECT_DIR": str(project), "NSM_PROJECT_FD": str(descriptor)}
        done = run(bash, "cat /project/file; ls /proc/self/fd", variables, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    assert answer(done).split() == ["theirs0", "1", "2", "3"]


def test_a_descriptor_alone_is_no_project_for_older_bwrap(bash: Path, project: Path) -> None:
    """Older bwrap gets an error instead of a jail without the project; newer ones need no path."""
    descriptor = os.open(project, os.O_PATH | os.O_DIRECTORY)
    try:
        variables = {"NSM_PROJECT_FD": f"0{descriptor}"}
        done = run(bash, "cat /project/file", variables, pass_fds=[descriptor])
    finally:
        os.close(descriptor)
    if "NSM_BINDS_DESCRIPTORS=yes" in (bash / "bin/run").read_text():
        assert answer(done) == "theirs"
    else:
        assert (done.returncode, done.stdout) == (64, "")
        assert done.stderr.startswith("nsm: PROJECT_DIR is '': expected an absolute path.")


def test_the_policy_and_variables_by_descriptors(bash: Path) -> None:
    """Neither is on a command line, and no descriptor is left."""
    words = ("--setenv", "TOKEN", "s3cret", "--setenv", "LANG", "xx", "--setenv", "EMPTY", "")
    code = (
        "cat /run/nsm/policy.json; stat -c %a /run/nsm/policy.json; ls /proc/self/fd; env; "
        "cat /proc/*/cmdline"
    )
    with ExitStack() as owned:
        policy = memory_file(b"{}\n", owned)
        variables = memory_file(b"".join(word.encode() + b"\0" for word in words), owned)
        given = {"NSM_POLICY_FD": str(policy), "NSM_VARIABLES_FD": str(variables)}
        done = run(bash, code, given, pass_fds=[policy, variables])
    lines = answer(done).splitlines()
    assert lines[:6] == ["{}", "444", "0", "1", "2", "3"]
    assert {"TOKEN=s3cret", "LANG=xx", "EMPTY="} <= set(lines)
    assert [line for line in lines if "s3cret" in line] == ["TOKEN=s3cret"]


def test_pid_1_is_told(bash: Path) -> None:
    told, information = os.pipe()
    try:
        done = run(
            bash,
            "readlink /proc/self/ns/pid",
            {"NSM_INFO_FD": str(information)},
            pass_fds=[information],
        )
        text = os.read(told, 4096)
    finally:
        os.close(told)
        os.close(information)
    namespace = json.loads(text)["pid-namespace"]
    assert answer(done) == f"pid:[{namespace}]\n"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PROJECT_DIR": "src"}, "PROJECT_DIR is 'src': expected an absolute path."),
        ({"PROJECT_DIR": "/nowhere"}, "PROJECT_DIR=/nowhere is not a directory."),
        ({"PROJECT_DIR": "--dev-bind"}, "PROJECT_DIR is '--dev-bind': expected an absolute path."),
        ({"PROJECT_MOUNT": "/"}, "PROJECT_MOUNT is '/': expected an absolute path"),
        ({"PROJECT_MOUNT": "project"}, "PROJECT_MOUNT is 'project': expected an absolute path"),
        ({"PROJECT_MOUNT": "/a/../etc"}, "PROJECT_MOUNT is '/a/../etc': expected"),
        ({"PROJECT_MOUNT": "/a/./b"}, "PROJECT_MOUNT is '/a/./b': expected"),
        ({"PROJECT_MOUNT": "/a//b"}, "PROJECT_MOUNT is '/a//b': expected"),
        ({"PROJECT_MOUNT": "/etc"}, "PROJECT_MOUNT=/etc would hide /etc."),
        ({"PROJECT_MOUNT": "/etc/ssl"}, "PROJECT_MOUNT=/etc/ssl is in /etc."),
        ({"PROJECT_MOUNT": "/run"}, "PROJECT_MOUNT=/run would hide /run/nsm."),
        ({"PROJECT_MODE": "overlay"}, "PROJECT_MODE=overlay is not available yet; use readonly."),
        ({"PROJECT_MODE": "rw"}, "PROJECT_MODE is 'rw': expected readonly."),
        ({"NSM_TMP_MB": "0"}, "NSM_TMP_MB is 0: expected a number of MiB."),
        ({"NSM_TMP_MB": "-1"}, "NSM_TMP_MB is '-1': expected digits."),
        ({"NSM_SHM_MB": "a[$(id)]"}, "NSM_SHM_MB is 'a[$(id)]': expected digits."),
        ({"NSM_WORKSPACE_MB": "999999999"}, "NSM_WORKSPACE_MB is '999999999': expected digits."),
        ({"NSM_INFO_FD": "99"}, "NSM_INFO_FD is 99: there is no such descriptor."),
        ({"NSM_INFO_FD": "255"}, "NSM_INFO_FD is 255: there is no such descriptor."),
        ({"NSM_INFO_FD": "0"}, "NSM_INFO_FD is 0: expected a descriptor of its own, from 3 on."),
        ({"NSM_POLICY_FD": "99"}, "NSM_POLICY_FD is 99: there is no such descriptor."),
        ({"NSM_VARIABLES_FD": "1"}, "NSM_VARIABLES_FD is 1: expected a descriptor of its own"),
        ({"NSM_PROJECT_FD": "02"}, "NSM_PROJECT_FD is 2: expected a descriptor of its own"),
        ({"NSM_PROJECT_FD": "/tmp"}, "NSM_PROJECT_FD is '/tmp': expected digits."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_variables_are_refused_with_the_reason(
    bash: Path, project: Path, variables: dict[str, str], message: str
) -> None:
    done = run(bash, "echo ran", {"PROJECT_DIR": str(project), **variables})
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.startswith(f"nsm: {message}"), done.stderr


def test_the_store_is_not_covered(bash: Path, place: standin.Place, project: Path) -> None:
    for target in (place.store, place.store.parent, place.store / "x"):
        done = run(bash, "echo ran", {"PROJECT_DIR": str(project), "PROJECT_MOUNT": str(target)})
        assert (done.returncode, done.stdout) == (64, "")


# ----------------------------------------------------------------------------------- one execution


@pytest.mark.parametrize("size", [131_071, 131_072, 10_000_000])
def test_code_that_is_no_argument(python: Path, size: int) -> None:
    """The kernel's limit is 128 KiB with the end that C gives a string."""
    done = run(python, "print(1)\n".ljust(size, "#"))
    if size == 131_071:
        assert answer(done) == "1\n"
    else:
        assert (done.returncode, done.stdout) == (64, "")
        assert done.stderr.startswith("nsm: the code is longer than 128 KiB")


def test_long_code_on_standard_input(bash: Path) -> None:
    assert answer(run(bash, "echo 1\n".ljust(1_000_000, "#"))) == "1\n"


def test_bytes_of_the_code_are_kept(python: Path, node: Path) -> None:
    text = "é'\"$(id)`id`\\n\n\n"
    assert answer(run(python, f"import sys; sys.stdout.write({text!r})")) == text
    assert answer(run(node, f"process.stdout.write({json.dumps(text)})")) == text
    # No option, whatever it begins with.
    assert answer(run(node, "-1; console.log(2)")) == "2\n"
    assert answer(run(python, "-1; print(2)")) == "2\n"


def test_the_exit_status_is_the_code_s(bash: Path, python: Path, node: Path) -> None:
    assert run(bash, "exit 7").returncode == 7
    assert run(node, "process.exit(8)").returncode == 8
    assert run(python, "import sys; sys.exit(9)").returncode == 9
    assert run(python, "").returncode == 0
    for number in (2, 9, 15):
        done = run(python, f"import os; os.kill(os.getpid(), {number})")
        assert done.returncode == 128 + number
        # Nothing but what the code's own interpreter said.
        assert "runner" not in done.stderr


def test_a_wrapper_is_found_by_a_relative_path(bash: Path) -> None:
    """The shell goes on reading the script while it closes what it inherited."""
    spare = [os.dup(0) for _ in range(3)]
    try:
        done = subprocess.run(
            ["bin/run"],
            cwd=bash,
            input="ls /proc/self/fd",
            env={},
            pass_fds=spare,
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    finally:
        for descriptor in spare:
            os.close(descriptor)
    assert answer(done).split() == ["0", "1", "2", "3"]


def test_processes_left_behind_end_with_the_jail(bash: Path) -> None:
    done = run(bash, "sleep 1000 & disown; setsid sleep 1000 & echo done")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_nothing_is_kept_between_executions(bash: Path) -> None:
    assert run(bash, "echo kept >/workspace/file; echo kept >/tmp/file").returncode == 0
    assert answer(run(bash, "ls -A /workspace /tmp")) == "/tmp:\n\n/workspace:\n"


@pytest.mark.slow
def test_bash_has_the_presets_tools(bash: Path) -> None:
    tools = "bash cat sed grep awk find xargs jq tree diff file bc"
    assert answer(run(bash, f"type -t {tools} >/dev/null && echo all")) == "all\n"
    told = answer(run(bash, "file --brief --mime-type /etc/passwd; echo '6*7' | bc"))
    assert told == "text/plain\n42\n"


# ---------------------------------------------------------------------------------------- sessions


def session(artifact: Path, *arguments: str) -> AgentProcess:
    """An agent in a jail of its own."""
    return AgentProcess(
        [str(artifact / "bin/session-run")], workspace=Path("/workspace"), arguments=arguments
    )


def program(artifact: Path) -> str:
    """The interpreter that metadata.json names."""
    text: str = json.loads((artifact / "metadata.json").read_text())["program"]
    return text


@pytest.mark.parametrize("older", [False, True], ids=["by this supervisor", "without arguments"])
@pytest.mark.parametrize(
    ("interpreter", "code"),
    [
        ("bash", "x=42; echo $x"),
        ("python", "import yaml; print(yaml.safe_load('42'))"),
        pytest.param("node", "console.log(6 * 7)", marks=pytest.mark.slow),
    ],
)
def test_a_session_runs_code(
    built: Callable[[str], Path], interpreter: Interpreter, code: str, *, older: bool
) -> None:
    arguments: tuple[str, ...] = ()
    if not older:
        limits = '{"processes": 64, "descriptors": 256}'
        arguments = ("--prestart", interpreter, "--workspace", "/workspace", "--limits", limits)
    with closing(session(built(f"presets.{interpreter}"), *arguments)) as agent:
        assert agent.ready["pid"] == 1
        assert agent.run(code, interpreter).stdout == "42\n"
        if not older:
            assert agent.bash("ulimit -n; pwd").stdout == "256\n/workspace\n"
        agent.send(type="shutdown")
        assert agent.wait() == 0


def test_a_session_ends_with_its_channel(bash: Path) -> None:
    with closing(session(bash)) as agent:
        agent.bash("sleep 1000 & disown")
        agent.socket.close()
        assert agent.wait() == 0


def test_python_runs_on_the_environment_s_own(python: Path) -> None:
    """A session can therefore import its packages; it is a fork of the agent, not another
    Python."""
    with closing(session(python)) as agent:
        executable, prefix, parent, package = json_of(
            agent.python(
                "import json, os, sys, yaml\n"
                "print(json.dumps([sys.executable, sys.prefix, os.getppid(), yaml.__file__]))"
            )
        )
    assert executable == program(python)
    assert executable.startswith(prefix)
    assert package.startswith(prefix)
    assert parent == 1


def test_an_environment_without_python_has_a_bundled_one(bash: Path) -> None:
    with closing(session(bash)) as agent:
        bundled = agent.python("import sys; print(sys.executable)").stdout.strip()
        assert agent.bash("type -P python3 || echo none").stdout.strip() == "none"
    assert os.path.basename(bundled) == "python3"
    assert "-nsm-env-" not in bundled
    assert "-nsm-env-bash/" in program(bash)


@pytest.mark.parametrize("name", ["run", "session-run", "template-run"])
def test_the_stand_in_for_jail_nix_makes_the_same_command(place: standin.Place, name: str) -> None:
    """The options of bwrap are the same, in the same order, variables apart."""
    if (tree := os.environ.get(standin.JAIL_NIX_VARIABLE)) is None:
        pytest.skip(f"not here: {standin.JAIL_NIX_VARIABLE} names no tree of jail.nix")

    def command(jail: Path) -> tuple[str, list[str]]:
        artifact = standin.build(place, "test-sandbox", None, jail=jail)
        text = (artifact / "bin" / name).read_text()
        (line,) = re.findall("^exec .*/bwrap .*$", text, re.MULTILINE)
        line = re.sub(r"/[0-9a-z]{32}-", "/", line)
        line = re.sub(r'--args "\$\w+"', "--args CLOSURE", line)
        return re.sub(r"--setenv \S+ \S+ ", "", line), sorted(re.findall(r"--setenv \S+ \S+", line))

    assert command(place.stand_in_jail) == command(Path(tree))


# --------------------------------------------------------------------------------------- as root


@pytest.mark.root
def test_root_s_jail_is_not_root_s(bash: Path) -> None:
    """The owner of /proc/sys/kernel/core_pattern on the host could write to it in any jail."""
    code = "cat /proc/self/uid_map; ! : 2>/dev/null >/proc/sys/kernel/core_pattern"
    assert answer(run(bash, code)).split() == ["1000", "0", "1"]
    outer, inner = socket.socketpair()
    with outer, inner:
        starter = subprocess.Popen(
            [str(bash / "bin/session-run")], stdin=inner.fileno(), stdout=inner.fileno(), env={}
        )
        inner.close()
        try:
            assert outer.recv(1)
            assert f"Uid:\t{65530}" in Path(f"/proc/{starter.pid}/status").read_text()
            outer.close()
            assert starter.wait(RUN_TIMEOUT_S) == 0
        finally:
            starter.kill()
            starter.wait()


@pytest.mark.root
def test_an_ordinary_user_starts_wrappers(python: Path) -> None:
    done = subprocess.run(
        [str(python / "bin/run")],
        input="import sys; print(sys.executable)",
        env={},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_TIMEOUT_S,
    )
    assert answer(done) == f"{program(python)}\n"
