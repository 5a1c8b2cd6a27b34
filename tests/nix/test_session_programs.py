"""`bin/session-run` and `bin/template-run` of artifacts, spoken to as the supervisor does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agent_process import ANSWER_TIMEOUT_S, AgentProcess, Interpreter, json_of
from sandbox.framing import MessageReader, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

pytestmark = pytest.mark.jail

PRESETS = [
    ("bash", "x=42; echo $x"),
    ("python", "import yaml; print(yaml.safe_load('42'))"),
    pytest.param("node", "console.log(6 * 7)", marks=pytest.mark.slow),
]


def session(artifact: Path, *arguments: str) -> AgentProcess:
    """An agent in a jail of its own."""
    return AgentProcess(
        [str(artifact / "bin/session-run")], workspace=Path("/workspace"), arguments=arguments
    )


def program(artifact: Path) -> str:
    """The interpreter that metadata.json names."""
    text: str = json.loads((artifact / "metadata.json").read_text())["program"]
    return text


@pytest.mark.parametrize(("interpreter", "code"), PRESETS)
def test_base_exchange(built: Callable[[str], Path], interpreter: Interpreter, code: str) -> None:
    """Without any arguments, as for older supervisors."""
    with closing(session(built(f"presets.{interpreter}"))) as agent:
        assert agent.ready["pid"] == 1
        agent.send(type="execute", id="1", interpreter=interpreter, code=code)
        assert agent.expect("result")["stdout"] == "42\n"
        agent.send(type="shutdown")
        assert agent.wait() == 0


@pytest.mark.parametrize(("interpreter", "code"), PRESETS)
def test_a_session_takes_the_arguments_of_the_supervisor(
    built: Callable[[str], Path], interpreter: Interpreter, code: str
) -> None:
    limits = '{"processes": 64, "descriptors": 256}'
    arguments = ("--prestart", interpreter, "--workspace", "/workspace", "--limits", limits)
    with closing(session(built(f"presets.{interpreter}"), *arguments)) as agent:
        assert agent.run(code, interpreter).stdout == "42\n"
        assert agent.bash("ulimit -n; pwd").stdout == "256\n/workspace\n"


def test_a_session_ends_with_its_channel(built: Callable[[str], Path]) -> None:
    agent = session(built("presets.bash"))
    with closing(agent):
        agent.bash("sleep 1000 & disown")
        agent.socket.close()
        assert agent.wait() == 0


def test_python_runs_on_the_environment_s_own(built: Callable[[str], Path]) -> None:
    """A session can therefore import its packages; it is a fork of the agent, not another
    Python."""
    artifact = built("presets.python")
    with closing(session(artifact)) as agent:
        told = json_of(
            agent.python(
                "import json, os, sys, yaml\n"
                "print(json.dumps([sys.executable, sys.prefix, os.getppid(), yaml.__file__]))"
            )
        )
    executable, prefix, parent, package = told
    assert executable == program(artifact)
    assert executable.startswith(prefix)
    assert package.startswith(prefix)
    assert parent == 1


def test_agents_of_other_languages_run_on_a_bundled_python(built: Callable[[str], Path]) -> None:
    artifact = built("presets.bash")
    with closing(session(artifact)) as agent:
        bundled = agent.python("import sys; print(sys.executable)").stdout.strip()
        found = agent.bash("type -P python3 || echo none").stdout.strip()
    assert found == "none"
    assert os.path.basename(bundled) == "python3"
    assert "-nsm-env-" not in bundled
    assert "-nsm-env-bash/" in program(artifact)


# ------------------------------------------------------------------------------------- templates


class Template:
    """The supervisor's side of `bin/template-run`."""

    def __init__(self, artifact: Path, *preload: str) -> None:
        self.artifact = artifact
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            self.process = subprocess.Popen(
                [str(artifact / "bin/template-run"), *preload], stdin=theirs.fileno(), env={}
            )
        message, descriptors, _, _ = socket.recv_fds(self.control, 65536, 1)
        for descriptor in descriptors:
            os.close(descriptor)
        self.ready: dict[str, Any] = json.loads(message)

    @contextmanager
    def fork(self, interpreter: str) -> Generator[socket.socket]:
        """The channel of a new session, from `ready` on."""
        request = {
            "prestart": interpreter,
            "rehearse": True,
            "programs": {interpreter: program(self.artifact)},
            "sizes": {"/dev/shm": 8, "/tmp": 8, "/workspace": 8},
            "hostname": "nsm",
            "limits": {"processes": 64},
        }
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(ANSWER_TIMEOUT_S)
            with theirs:
                message = json.dumps(request).encode() + b"\0"  # and no policy
                socket.send_fds(self.control, [message], [theirs.fileno()])
            sign, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
            for descriptor in descriptors:
                os.close(descriptor)
            assert sign == b"+", ours.recv(4096)
            yield ours

    def close(self) -> None:
        self.control.close()
        try:
            assert self.process.wait(ANSWER_TIMEOUT_S) == 0
        finally:
            self.process.kill()
            self.process.wait()


def frames(channel: socket.socket) -> Iterator[dict[str, Any]]:
    """Read the frames that come out of a session."""
    reader = MessageReader()
    while data := channel.recv(1 << 20):
        reader.receive_data(data)
        while (frame := reader.next_message()) is not None:
            yield frame


def execute(channel: socket.socket, interpreter: str, code: str) -> Any:
    """The result of the first execution in a session."""
    heard = frames(channel)
    assert next(heard)["type"] == "ready"
    channel.sendall(
        encode_frame({"type": "execute", "id": "1", "interpreter": interpreter, "code": code})
    )
    return next(frame for frame in heard if frame["type"] == "result")


@pytest.mark.parametrize(("interpreter", "code"), PRESETS)
def test_sessions_are_forked(built: Callable[[str], Path], interpreter: str, code: str) -> None:
    with closing(Template(built(f"presets.{interpreter}"))) as template:
        assert template.ready["ready"] is True
        for _ in range(2):
            with template.fork(interpreter) as channel:
                assert execute(channel, interpreter, code)["stdout"] == "42\n"


def test_a_fork_s_python_is_the_template_s(built: Callable[[str], Path]) -> None:
    """A path other than the template's own would make each fork start a Python."""
    code = "import os, sys; print(os.getppid(), 'yaml' in sys.modules, os.listdir('/workspace'))"
    with closing(Template(built("presets.python"), "yaml")) as template:  # noqa: SIM117 one line is too long
        with template.fork("python") as channel:
            assert execute(channel, "python", code)["stdout"] == "1 True []\n"


def test_a_fork_has_what_a_session_has(built: Callable[[str], Path]) -> None:
    code = """
grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status
for place in / /dev /etc /bin /usr; do touch "$place/x" 2>&1; done
df -k --output=size /workspace /tmp /dev/shm | tail -n 3
cat /etc/hosts
"""
    with closing(Template(built("presets.bash"))) as template, template.fork("bash") as channel:
        lines = execute(channel, "bash", code)["stdout"].splitlines()
    assert lines[:3] == ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    assert [line.rsplit(": ", 1)[1] for line in lines[3:8]] == [
        *["Read-only file system"] * 4,
        "No such file or directory",
    ]
    assert [line.strip() for line in lines[8:11]] == ["8192"] * 3
    assert lines[11] == "127.0.0.1 localhost nsm"


def test_modules_that_cannot_be_preloaded_are_told(built: Callable[[str], Path]) -> None:
    artifact = built("presets.python")
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, theirs:
        control.settimeout(ANSWER_TIMEOUT_S)
        starter = subprocess.Popen(
            [str(artifact / "bin/template-run"), "nosuch"],
            stdin=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            env={},
        )
        try:
            told = json.loads(control.recv(1 << 20))
            assert told["ready"] is True
            assert told["failed"].keys() == {"nosuch"}
            assert "ModuleNotFoundError" in told["failed"]["nosuch"]
        finally:
            starter.kill()
            starter.wait()
