"""Jupyter: kernels in sessions, by the kernel provisioner `nsm`.

A kernel is a process in the jail of a session of its own. Its five channels are ports of the
session, relayed to ports of this machine's loopback, so every client of Jupyter works as ever.
Restarting a kernel starts a new process in the same session: its files stay.

IPython's kernel is a fork of the session's interpreter, which has all that its environment
preloads; `nsm env add NAME --pip ipykernel --preload ipykernel.kernelapp` makes it start at once.
Other kernels are started as programs.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Integer, Unicode

from nsm.integrations.sandboxes import GONE, AdapterSandbox
from nsm.wire.errors import JobError, NsmError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsm import AsyncJob, SandboxSettings

T = TypeVar("T")

CHANNELS = {"shell": 52001, "iopub": 52002, "stdin": 52003, "control": 52004, "hb": 52005}
"""Ports of a kernel's channels in its session, which has a loopback of its own."""

CONNECTION_FILE = "/tmp/nsm-kernel.json"  # noqa: S108  # in the session

_LOG = "/tmp/nsm-kernel.log"  # noqa: S108  # likewise
"""Output of a forked kernel."""

_PREPARE = """
import os as _os, ipykernel.kernelapp
_os.mkfifo({alive!r})
del _os, ipykernel
"""
"""Code that makes a pipe which is open as long as the kernel lives."""

_WAIT = 'read -r code <"$1"; exit "${code:-1}"'
"""Program that ends with the kernel, with its exit code."""

_FORK = """
def _start_kernel(argv, cwd, variables, alive, log):
    import asyncio, os, signal, sys, traceback
    from ipykernel import kernelapp
    path, held = alive, [os.open(alive, os.O_WRONLY)]
    def let_go():
        while held:
            os.close(held.pop())
    try:
        os.unlink(path)
        pid = os.fork()
    except BaseException:
        let_go()
        raise
    if pid:
        let_go()
        sys.stdout.write("%s: %d\\n" % (path, pid))
        return
    code = 1
    try:
        os.setsid()
        os.register_at_fork(after_in_child=let_go)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.close(out)
        os.chdir(cwd)
        os.environ.update(variables)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.displayhook = sys.__displayhook__
        asyncio.events._set_running_loop(None)
        asyncio.set_event_loop(None)
        sys.argv = argv
        kernelapp.launch_new_instance()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for fd in held:
            os.write(fd, b"%d\\n" % code)
        os._exit(code & 255)
_start_kernel(*{arguments!r})
del _start_kernel
"""
"""Code that forks the kernel from the interpreter, and prints the pipe's path with its process id.

Only the kernel keeps the pipe open: processes that it forks close it, as they may outlive it.
"""

_POLL_S = 0.1
"""Pause between questions whether a kernel has ended."""

_TAIL_BYTES = 4096
"""Output to show of a kernel that has died."""

_SHOWN = 200
"""Characters to show of output that is not as expected."""

_DIED = 1
"""Exit code of a kernel whose session has ended."""


class NsmProvisioner(LocalProvisioner):
    """Starts kernels in sessions of nsm.

    Its settings are those of `nsm.Client.sandbox`; a kernel specification gives them in
    `metadata.kernel_provisioner.config`.
    """

    env = Unicode("python", config=True, help="Environment, in which ipykernel is installed.")
    project = Unicode("", config=True, help="Directory that code sees at /project.")
    project_mode = Unicode("", config=True, help="readonly or overlay.")
    network = Unicode("", config=True, help="off, full, or a list of hosts.")
    memory_mb = Integer(0, config=True, help="Memory of the session, in MiB.")

    forked = Bool(True, config=True, help="Fork IPython's kernel from the session's interpreter.")

    _sandbox: AdapterSandbox | None = None
    _job: AsyncJob | None = None  # the kernel, or what ends with a forked one
    _pid = 0  # of a forked kernel, in its session

    @property
    def has_process(self) -> bool:
        """Tell whether there is a kernel to wait for."""
        return self._job is not None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Open the channels' ports, and have Jupyter write its connection file.

        Raises:
            RuntimeError: the session can't be made, or has no such port to give.
        """
        manager = self.parent
        if manager is None or manager.transport != "tcp":
            raise RuntimeError("nsm's kernels need Jupyter's transport 'tcp'")
        self.ports_cached = True  # ports are nsm's to choose
        try:
            await self._open(manager)
        except (NsmError, OSError) as error:
            await self.cleanup()
            raise RuntimeError(f"nsm: {error}") from error
        # No variable of this process goes into the session, except what the specification names.
        given: dict[str, Any] = await super().pre_launch(**kwargs)
        own = self.kernel_spec.env or {}
        given["env"] = {name: given["env"].get(name, value) for name, value in own.items()}
        return given

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start the kernel in its session.

        Raises:
            RuntimeError: it can't be started.
        """
        manager = self.parent
        connection: dict[str, Any] = json.loads(_read(manager.connection_file))
        inside = connection | {f"{name}_port": port for name, port in CHANNELS.items()}
        inside["ip"] = "127.0.0.1"
        argv = [word.replace(manager.connection_file, CONNECTION_FILE) for word in cmd]
        if os.path.isabs(argv[0]):  # the interpreter of this machine's Jupyter is not in the jail
            argv[0] = "python3" if "python" in os.path.basename(argv[0]) else argv[0]
        environ = {"IPYTHONDIR": "/tmp/.ipython", **kwargs.get("env", {})}  # noqa: S108
        forks = self.forked and argv[:3] == ["python3", "-m", "ipykernel_launcher"]
        start = partial(
            self._fork if forks else self._start,
            argv,
            json.dumps(inside).encode(),
            environ,
            self._cwd(kwargs),
        )
        self._pid = 0
        try:
            self._job = await self._do(start)
        except (NsmError, OSError, RuntimeError) as error:
            await self.cleanup()
            raise RuntimeError(f"nsm: {error}") from error
        info: dict[str, Any] = self.connection_info
        return info

    async def poll(self) -> int | None:
        """None while the kernel runs, else its exit code."""
        if self._job is None:
            return 0
        job = self._job
        try:
            info = await self._do(partial(job.wait, 0.0))
        except GONE:
            self.log.warning("nsm: the session of the kernel has ended")
            return _DIED
        except (
            NsmError,
            OSError,
        ) as error:  # a supervisor that is away comes back with its sessions
            self.log.warning("nsm: %s", error)
            return None
        if info.running:
            return None
        return info.exit_code if info.exit_code is not None else _DIED

    async def wait(self) -> int | None:
        """Wait for the kernel's end."""
        code: int | None = 0
        while self._job is not None and (code := await self.poll()) is None:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)
        if code and self._job is not None:
            await self._tell_output(self._job)
        self._job = None
        return code

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel and all in its process group."""
        if self._job is not None and signum:
            try:
                await self._do(partial(self._signal, self._job, int(signum)))
            except (JobError, OSError, *GONE) as error:
                self.log.debug("nsm: %s", error)

    async def kill(self, restart: bool = False) -> None:  # noqa: ARG002  # Jupyter's interface
        """Kill the kernel."""
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:  # noqa: ARG002  # likewise
        """Ask the kernel to end."""
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        """End the session, unless the kernel is about to start again in it."""
        if self._sandbox is not None and not restart:
            sandbox, self._sandbox, self._job = self._sandbox, None, None
            await sandbox.aclose()

    # Parts of the above.

    async def _do(self, function: Callable[[], Awaitable[T]]) -> T:
        assert self._sandbox is not None, "it is made before a kernel is started"
        return await self._sandbox.ado(function)

    async def _open(self, manager: Any) -> None:
        """Have a session, and its ports open at the manager's ports."""
        if self._sandbox is not None:
            try:  # a kernel that is started again
                await self._do(self._check)
            except GONE:
                await self.cleanup()
        if self._sandbox is None:
            self._sandbox = AdapterSandbox("jupyter", **self._settings())
        wanted = {name: getattr(manager, f"{name}_port") for name in CHANNELS}
        for name, port in (await self._do(partial(self._open_ports, manager.ip, wanted))).items():
            setattr(manager, f"{name}_port", port)

    async def _check(self) -> None:
        """Raise the error of a session that has ended."""
        assert self._sandbox is not None, "the caller has looked"
        sandbox = await self._sandbox.opened()
        await sandbox.files.stat("/tmp")  # noqa: S108  # in the session

    async def _open_ports(self, ip: str, wanted: dict[str, int]) -> dict[str, int]:
        """Open the channels' ports, where they are not open yet.

        Args:
            wanted: ports of this machine; 0 for any.

        Returns:
            Ports of this machine.
        """
        assert self._sandbox is not None, "the caller has made it"
        sandbox = await self._sandbox.opened()
        rows = await self._sandbox.open_ports()
        found: dict[str, int] = {}
        for name, port in CHANNELS.items():
            row = rows.get(port)
            if row is None:
                row = await sandbox.open_port(port, listen=f"{ip}:{wanted[name]}")
            found[name] = int(row.address.rpartition(":")[2])
        return found

    async def _start(
        self, argv: list[str], connection: bytes, environ: dict[str, str], cwd: str
    ) -> AsyncJob:
        assert self._sandbox is not None, "`pre_launch` has made it"
        sandbox = await self._sandbox.opened()
        await sandbox.files.write(CONNECTION_FILE, connection)
        return await self._sandbox.start(argv, environ=environ, cwd=cwd)

    async def _fork(
        self, argv: list[str], connection: bytes, environ: dict[str, str], cwd: str
    ) -> AsyncJob:
        """Fork the kernel from the session's interpreter.

        Returns:
            A program that ends with it.

        Raises:
            RuntimeError: the interpreter has no ipykernel, cannot fork, or does not tell of the
                kernel.
        """
        assert self._sandbox is not None, "`pre_launch` has made it"
        sandbox = await self._sandbox.opened()
        await sandbox.files.write(CONNECTION_FILE, connection)
        alive = f"/tmp/nsm-kernel-{uuid.uuid4().hex}"  # noqa: S108  # in the session
        prepared = await sandbox.run(_PREPARE.format(alive=alive))
        if prepared.exit_code:
            raise RuntimeError(self._explained(prepared.stderr))
        job = await self._sandbox.start(["sh", "-c", _WAIT, "sh", alive])
        arguments = ([argv[2], *argv[3:]], cwd, environ, alive, _LOG)
        made = await sandbox.run(_FORK.format(arguments=arguments))
        if made.exit_code:
            await job.signal("KILL")
            raise RuntimeError(self._explained(made.stderr))
        # Code of the environment runs at the fork, too, and may print.
        told = re.search(rf"{alive}: (\d+)$", made.stdout, re.MULTILINE)
        if told is None:  # ending the session, as the caller does, ends the kernel
            raise RuntimeError(
                f"the interpreter of nsm's environment {self.env!r} did not print the "
                f"kernel's process id. It printed {made.stdout[-_SHOWN:]!r}. Probably a package "
                "changes standard output, or runs code when a process forks. Remove it, or set "
                "`forked` to false in the kernel's specification."
            )
        # As its parent, the interpreter, reaps no child, the number remains the kernel's.
        self._pid = int(told[1])
        if self._pid <= 1:
            raise RuntimeError(f"the kernel says that its process id is {self._pid}")
        return job

    async def _signal(self, job: AsyncJob, signum: int) -> None:
        if not self._pid:
            await job.signal(str(signum))
            return
        assert self._sandbox is not None, "there is a kernel"
        await self._sandbox.execute_async(["sh", "-c", f"kill -{signum} -{self._pid}"])

    async def _said(self, job: AsyncJob) -> str:
        """The last of what a kernel has printed."""
        if self._pid:
            assert self._sandbox is not None, "there was a kernel"
            sandbox = await self._sandbox.opened()
            return (await sandbox.files.read(_LOG))[-_TAIL_BYTES:].decode(errors="replace")
        result = await job.collect()
        return (result.stdout + result.stderr)[-_TAIL_BYTES:].decode(errors="replace")

    async def _tell_output(self, job: AsyncJob) -> None:
        """Log the last of what a kernel has printed before it died."""
        try:
            text = await self._do(partial(self._said, job))
        except (NsmError, OSError):
            return
        if text.strip():
            self.log.error("nsm: the kernel ended: %s", self._explained(text))

    def _explained(self, text: str) -> str:
        if "No module named 'ipykernel'" in text or "No module named ipykernel" in text:
            return (
                f"nsm's environment {self.env!r} has no ipykernel. Make one that has it, "
                "`nsm env add NAME --pip ipykernel --preload ipykernel.kernelapp`, and name it in "
                "the kernel's specification."
            )
        return text.strip()

    def _settings(self) -> SandboxSettings:
        settings: SandboxSettings = {"env": self.env, "labels": {"kernel": self.kernel_id}}
        if self.project:
            settings["project"] = os.path.abspath(os.path.expanduser(self.project))
        if self.project_mode:
            settings["project_mode"] = self.project_mode
        if self.network:
            settings["network"] = self.network
        if self.memory_mb:
            settings["memory_mb"] = self.memory_mb
        return settings

    def _cwd(self, given: dict[str, Any]) -> str:
        """The kernel's working directory: the notebook's, if the session sees it."""
        cwd = os.path.realpath(given.get("cwd") or os.getcwd())
        project = os.path.realpath(os.path.expanduser(self.project)) if self.project else None
        if project is None or os.path.commonpath([cwd, project]) != project:
            return "/workspace"
        return os.path.normpath(os.path.join("/project", os.path.relpath(cwd, project)))


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()
