"""The agent's program: runs inside a jail, starts interpreters and runs code in them.

The package `sandbox` beside this file has its parts. What travels into a jail is one file, which
`sandbox.bundle` makes of both. It speaks the protocol of `docs/contributing/agent-protocol.md` on
its standard input and output.
"""

from __future__ import annotations

import gc
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # unbundled

from sandbox.agent import Agent
from sandbox.framing import as_object, from_json
from sandbox.interpreters import INTERPRETERS
from sandbox.interpreters.base import ForkedWorker
from sandbox.interpreters.framed import ImageWorkers, PythonInterpreter
from sandbox.limits import FIXED_LIMITS, Limits, set_limits
from sandbox.linux import (
    PR_SET_DUMPABLE,
    c_library,
    dup_high,
    identity_of,
    prctl,
    shut_abstract_sockets,
    with_pipes,
)
from sandbox.runners import ForkedRunner
from sandbox.session import SharedSession
from sandbox.shared_page import SharedPage
from sandbox.workers.python.worker import PythonWorker, run_worker

del sys.path[0]  # unbundled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn


def claim_channel() -> tuple[int, int]:
    """Move the channel away from descriptors 0 and 1, which become /dev/null and the log."""
    read_fd, write_fd = dup_high(0), dup_high(1)
    if identity_of(os.fstat(read_fd)) == identity_of(os.fstat(write_fd)):
        os.close(write_fd)
        write_fd = read_fd
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # started without a log
        os.dup2(null, 1)
        os.dup2(null, 2)
    os.close(null)
    return read_fd, write_fd


def which(name: str) -> str:
    """Path of a program on PATH, or an empty string."""
    for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or ".", name)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def prepare(
    *,
    programs: Mapping[str, str] | None = None,
    workspace: str = "",
    limits: Limits | None = None,
) -> Agent:
    """Make an agent, in the process that serves or before the fork that makes it.

    Args:
        programs: interpreter name → path, for those that are not the default.
        workspace: default `/workspace`, or the working directory where there is none.
        limits: for interpreters from their start; default none until `hello` brings some.
    """
    given = programs or {}
    defaults = {"python": sys.executable, "bash": which("bash"), "node": which("node")}
    found = {name: given.get(name) or path for name, path in defaults.items()}
    directory = workspace or ("/workspace" if os.path.isdir("/workspace") else os.getcwd())
    available = {name: path for name, path in found.items() if path}
    c_library()  # made here, since each fork would have to make it
    session = SharedSession(os.path.abspath(__file__), os.path.realpath(directory), limits)
    return Agent(session, available)


def serve(
    agent: Agent,
    read_fd: int,
    write_fd: int,
    *,
    prestart: str | None = None,
    rehearse: bool = True,
    host_network: bool = False,
    worker: PythonWorker | None = None,
    adopted: Sequence[int] = (),
    layers: Sequence[Sequence[int]] = (),
    workers: tuple[int, int, Mapping[str, str], bool] | None = None,
) -> NoReturn:
    """Have an agent serve on this channel.

    Nobody who shares the uid may look into this process from now on, so it must never `execve`,
    which would undo that.

    Args:
        read_fd, write_fd: the channel, close-on-exec and above 2; may be the same.
        prestart: name of the interpreter to be up before `ready`.
        rehearse: it runs code that does nothing before, so that the first execution is faster.
        host_network: the network is the host's, and what else is in it is to be out of reach.
        worker: a Python worker that was made before a fork.
        adopted: arguments of `Interpreter.adopt`, if the interpreter runs already.
        layers: as `SharedSession.layers`, if the session has undo.
        workers: arguments of `ImageWorkers`, if the image's Python can be forked.
    """
    prctl(PR_SET_DUMPABLE, 0)
    agent.session.layers = layers
    if workers is not None:
        python = agent.interpreters["python"]
        assert isinstance(python, PythonInterpreter)
        python.workers = ImageWorkers(*workers)
    if host_network:
        shut_abstract_sockets()
    fork: ForkedWorker | ForkedRunner
    try:
        agent.run(read_fd, write_fd, prestart, rehearse=rehearse, adopted=adopted)
    except (ForkedWorker, ForkedRunner) as unwound:
        fork = unwound.with_traceback(None)
    if isinstance(fork, ForkedWorker):
        run_worker(worker, fork.control_fd, fork.page)
    programs = {name: each.program for name, each in agent.interpreters.items()}
    runner = Agent(fork.session, programs)
    runner.inherit(agent)
    # Not in each fork.
    worker = worker or with_pipes(PythonWorker)
    gc.freeze()
    fork.session.start_fork_server(runner.interpreters[fork.interpreter], worker)
    serve(runner, fork.channel_fd, fork.channel_fd, prestart=fork.interpreter, worker=worker)


def main(arguments: Sequence[str]) -> NoReturn:
    """The command line; see docs/contributing/agent-protocol.md."""
    if len(arguments) == 3 and arguments[0] == "--worker":
        control_fd, page_fd = map(int, arguments[1:])
        os.set_inheritable(control_fd, False)
        page = SharedPage(page_fd)
        os.close(page_fd)
        run_worker(None, control_fd, page)
    programs = ("python", "bash", "node")
    names = ("prestart", *programs, "workspace", "limits", "network", "adopt", "layers")
    options: dict[str, str] = dict.fromkeys(names, "")
    for option, value in zip(arguments[::2], [*arguments[1::2], ""]):
        if option[2:] not in options or not option.startswith("--") or not value:
            known = ", ".join(f"--{name} VALUE" for name in options)
            sys.exit(f"sandbox_agent: {option} {value}: expected {known}")
        options[option[2:]] = value
    prestart = options.pop("prestart") or None
    if prestart not in {None, *INTERPRETERS}:
        sys.exit(f"sandbox_agent: --prestart {prestart}: expected {', '.join(INTERPRETERS)}")
    workspace = options.pop("workspace")
    try:
        limits = Limits(as_object(from_json(options.pop("limits") or "{}")))
    except ValueError as error:
        sys.exit(f"sandbox_agent: --limits: {error}")
    host_network = options.pop("network") == "host"
    adopted, layers = (
        [int(number) for number in options.pop(name).split(",") if number]
        for name in ("adopt", "layers")
    )
    for fd in layers:
        os.set_inheritable(fd, False)
    read_fd, write_fd = claim_channel()
    set_limits(FIXED_LIMITS)
    agent = prepare(programs=options, workspace=workspace, limits=limits)
    serve(
        agent,
        read_fd,
        write_fd,
        prestart=prestart,
        host_network=host_network,
        adopted=adopted,
        layers=[layers] if layers else (),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
