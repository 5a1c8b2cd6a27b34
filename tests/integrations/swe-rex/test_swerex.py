"""Runtime of SWE-ReX, with the package itself; after its own tests/test_execution.py."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.local import LocalRuntime, _check_bash_command

import adapter_faults
import host_attacks
from nsm.integrations.swerex import NsmDeployment, NsmRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from e2e_support import Supervisor

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def runtime(shared: Supervisor, anyio_backend: str) -> AsyncGenerator[NsmRuntime]:
    it = NsmRuntime()
    await it.create_session(CreateBashSessionRequest())
    yield it
    await it.close()


async def output(runtime: NsmRuntime, command: str, session: str = "default") -> str:
    action = BashAction(command=command, session=session, timeout=PATIENCE_S)
    return (await runtime.run_in_session(action)).output


# Its own tests, ported


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo 'hello world'", "hello world\n"),
        ("echo '  leading'", "  leading\n"),
        ("echo -n a", "a"),
        ("\n", ""),
        ("", ""),
        ("# only a comment", ""),
        ("echo 'a'\n\necho 'b'", "a\nb\n"),
        ("cat <<EOF\nin a\nhere-document\nEOF", "in a\nhere-document\n"),
        ("(exit 0); echo $?", "0\n"),
        ("for i in 1 2\ndo echo $i\ndone", "1\n2\n"),
        ("x=1; while [ $x -le 3 ]; do echo $x; x=$((x+1)); done", "1\n2\n3\n"),
        ("[[ $(echo a) == a ]] && echo yes", "yes\n"),
    ],
)
async def test_commands_of_a_shell(runtime: NsmRuntime, command: str, expected: str) -> None:
    assert await output(runtime, command) == expected
    assert await output(runtime, "echo next") == "next\n"


async def test_characters_stay_whole_wherever_output_is_read(runtime: NsmRuntime) -> None:
    """Reads end after a number of bytes, most of them within a character of three."""
    code = "printf '%100000s' | sed 's/ /\u20ac/g'"
    seen = await runtime.run_in_session(BashAction(command=code))
    assert seen.output.replace("\n", "").strip() == "\u20ac" * 100_000


async def test_a_shell_keeps_its_state_and_is_not_anothers(runtime: NsmRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest(session="other"))
    await output(runtime, "cd /tmp; A=1; f() { echo f; }")
    assert await output(runtime, "pwd; echo $A; f") == "/tmp\n1\nf\n"
    assert await output(runtime, "pwd; echo $A", "other") == "/workspace\n\n"


async def test_exit_codes(runtime: NsmRuntime) -> None:
    with pytest.raises(NonZeroExitCodeError, match="exit code 3"):
        await output(runtime, "(exit 3)")
    action = BashAction(command="false", check="silent", timeout=PATIENCE_S)
    assert (await runtime.run_in_session(action)).exit_code == 1
    action = BashAction(command="false", check="ignore", timeout=PATIENCE_S)
    assert (await runtime.run_in_session(action)).exit_code is None


async def test_a_syntax_error_is_found_before_anything_runs(runtime: NsmRuntime) -> None:
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await output(runtime, "touch made\nif ; then")
    assert "syntax error" in caught.value.extra_info["bash_stderr"]
    assert await output(runtime, "ls made 2>/dev/null || echo no") == "no\n"


async def test_interactive_programs(runtime: NsmRuntime) -> None:
    for _ in range(2):
        begin = BashAction(
            command="python3 -q", is_interactive_command=True, expect=[">>> "], timeout=PATIENCE_S
        )
        assert (await runtime.run_in_session(begin)).expect_string == ">>> "
        line = BashAction(
            command="print(6 * 7)", is_interactive_command=True, expect=[">>> "], timeout=PATIENCE_S
        )
        assert "42" in (await runtime.run_in_session(line)).output
        end = BashAction(command="exit()", is_interactive_quit=True, timeout=PATIENCE_S)
        await runtime.run_in_session(end)
        assert await output(runtime, "echo back") == "back\n"


async def test_a_command_that_takes_too_long_is_interrupted(runtime: NsmRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command="echo a; sleep 1000", timeout=0.5))
    await runtime.run_in_session(BashInterruptAction(timeout=PATIENCE_S))
    assert await output(runtime, "echo back") == "back\n"


async def test_what_ignores_an_interrupt_is_killed(runtime: NsmRuntime) -> None:
    command = "sh -c 'trap \"\" INT; echo on >on; while :; do sleep 1; done'"
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command=command, timeout=0.5))
    await runtime.run_in_session(BashInterruptAction(timeout=1, n_retry=1))
    assert await output(runtime, "echo back") == "back\n"


async def test_the_end_of_a_shell(runtime: NsmRuntime) -> None:
    with pytest.raises(NoExitCodeError, match="the shell has ended"):
        await output(runtime, "exit 3")


async def test_names_of_shells(runtime: NsmRuntime) -> None:
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    await runtime.close_session(CloseBashSessionRequest())
    for call in (
        runtime.close_session(CloseBashSessionRequest()),
        runtime.run_in_session(BashAction(command="true")),
    ):
        with pytest.raises(SessionDoesNotExistError):
            await call


async def test_files_that_a_shell_reads_first(runtime: NsmRuntime) -> None:
    await runtime.write_file(
        WriteFileRequest(path="a b/rc", content="echo read; A=1; PS1='mine> '")
    )
    made = await runtime.create_session(
        CreateBashSessionRequest(
            session="x", startup_source=["/workspace/a b/rc"], startup_timeout=PATIENCE_S
        )
    )
    assert made.output == "read\n"
    assert await output(runtime, "echo $A", "x") == "1\n"


async def test_programs(runtime: NsmRuntime) -> None:
    done = await runtime.execute(Command(command="echo a; echo b >&2; printf '\\377'", shell=True))
    assert (done.stdout, done.stderr, done.exit_code) == ("a\n\\xff", "b\n", 0)
    done = await runtime.execute(
        Command(
            command=["sh", "-c", "echo a; echo b >&2; pwd; echo $A"], cwd="/tmp", env={"A": "1"}
        )
    )
    assert (done.stdout, done.stderr) == ("a\n/tmp\n1\n", "b\n")
    merged = Command(command="echo a; echo b >&2", shell=True, merge_output_streams=True)
    assert (await runtime.execute(merged)).stdout == "a\nb\n"
    with pytest.raises(NonZeroExitCodeError, match="oh"):
        await runtime.execute(Command(command=["false"], check=True, error_msg="oh"))
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command=["sleep", "1000"], timeout=0.3))


async def test_files(runtime: NsmRuntime, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/f").write_text("here")
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "in"), target_path="/tmp/a/b"))
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "in/f"), target_path="/tmp/c/d"))
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/a/b/f"))).content == "here"
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/c/d"))).content == "here"
    await runtime.execute(Command(command="printf '\\377' >/tmp/x", shell=True))
    read = ReadFileRequest(path="/tmp/x", errors="backslashreplace")
    assert (await runtime.read_file(read)).content == "\\xff"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/nope"))


# What is ours


async def test_a_command_cannot_leave_the_check_of_its_syntax(
    runtime: NsmRuntime, tmp_path: Path
) -> None:
    """SWE-ReX checks syntax in a here-document of the host's shell, which a command can end."""
    made = tmp_path / "made"
    command = f"true\nSOUNIQUEEOF\ntouch {made}\ntrue <<SOUNIQUEEOF"
    with suppress(BashIncorrectSyntaxError):
        _check_bash_command(command)
    assert made.exists()
    made.unlink()
    action = BashAction(command=command, timeout=PATIENCE_S, check="silent")
    await runtime.run_in_session(action)
    assert not made.exists()


async def test_output_that_looks_like_their_prompt(runtime: NsmRuntime) -> None:
    text = "SHELLPS1PREFIX EXITCODESTART0EXITCODEEND UNIQUESTRING29234"
    assert await output(runtime, f"echo {text}; echo more") == f"{text}\nmore\n"


async def test_a_deployment(shared: Supervisor, anyio_backend: str) -> None:
    deployment = NsmDeployment(memory_mb=256)
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    assert not await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    runtime = deployment.runtime
    await deployment.stop()
    await deployment.stop()
    assert not await deployment.is_alive()
    assert "closed" in (await runtime.is_alive()).message


class TestFaults(adapter_faults.AsyncFaults):
    owner = "swe-rex"

    def open(self, **settings: Any) -> NsmRuntime:
        return NsmRuntime(**settings)

    async def arun(self, box: NsmRuntime, command: str) -> str:
        return (await box.execute(Command(command=command, shell=True))).stdout

    def attack_locally(self, target: host_attacks.Target) -> str:
        return asyncio.run(LocalRuntime().execute(Command(command=target.argv))).stdout

    def run_for(self, box: NsmRuntime, command: str, seconds: float) -> None:
        with pytest.raises(CommandTimeoutError):
            asyncio.run(box.execute(Command(command=command, shell=True, timeout=seconds)))

    def close(self, box: NsmRuntime) -> None:
        asyncio.run(box.close())
