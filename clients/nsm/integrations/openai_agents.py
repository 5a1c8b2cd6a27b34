"""Sandboxes of the OpenAI Agents SDK in sessions of nsm.

Example::

    from agents import Runner
    from agents.run import RunConfig
    from agents.sandbox import SandboxAgent, SandboxRunConfig
    from nsm.integrations.openai_agents import NsmSandboxClient

    config = RunConfig(sandbox=SandboxRunConfig(client=NsmSandboxClient()))
    result = await Runner.run(SandboxAgent(name="Worker"), "Count the files", run_config=config)

openai_agents_terminals.py has the programs that the SDK comes back to.
"""

# pyright: basic, reportMissingImports=false, reportIncompatibleVariableOverride=false
# mypy: disable-error-code="misc, no-any-unimported, import-not-found"

from __future__ import annotations

import asyncio
import posixpath
import tarfile
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agents.sandbox import Manifest
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.session import Instrumentation, SandboxSessionState
from agents.sandbox.session.runtime_helpers import RESOLVE_WORKSPACE_PATH_HELPER
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint
from agents.sandbox.util.tar_utils import (
    UnsafeTarMemberError,
    should_skip_tar_member,
    validate_tarfile,
)
from agents.sandbox.workspace_paths import posix_path_as_path

from nsm.integrations.openai_agents_terminals import TerminalSession
from nsm.integrations.sandboxes import GONE, AdapterSandbox, resolved
from nsm.wire.errors import FileError, NsmError

if TYPE_CHECKING:
    import io
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from pathlib import Path, PurePosixPath
    from typing import IO, Unpack

    from agents.sandbox.session import Dependencies, SandboxSession
    from agents.sandbox.session.runtime_helpers import RuntimeHelperScript
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec
    from agents.sandbox.types import User

    from nsm import AsyncSessionFiles, SandboxSettings

T = TypeVar("T")

FRAMEWORK = "openai-agents"
LABEL = "openai-agents-session"
"""Label of a session: the SDK's id of it. A saved state with another id does not lead to it."""

PLACES = ("/workspace", "/tmp")  # noqa: S108  # of the session
"""Directories of a session that a workspace can be in."""

SPOOL_BYTES = 16 * 1024 * 1024
"""Size from which a file or an archive on its way is kept on disk."""

WHOLE_BYTES = 1024 * 1024
"""Size up to which a file is written in one piece."""


class NsmSandboxSessionState(SandboxSessionState):
    """Saved state of a session, with which it can be resumed.

    Attributes:
        nsm_session: id of the session of nsm; None before it was started.
    """

    type: Literal["nsm"] = "nsm"
    nsm_session: str | None = None


class NsmSandboxClientOptions(BaseSandboxClientOptions):
    """Options of one session.

    Attributes:
        exposed_ports: ports of the session that may be opened on the host's loopback.
    """

    type: Literal["nsm"] = "nsm"
    exposed_ports: tuple[int, ...] = ()


class NsmSandboxSession(TerminalSession):
    """A workspace of the SDK in a session of nsm, which begins when it is started.

    It ends with the client's `delete`, with the program unless it is `lasting`, or by its idle
    time.
    """

    state: NsmSandboxSessionState

    def __init__(
        self, state: NsmSandboxSessionState, sandbox: Callable[..., AdapterSandbox]
    ) -> None:
        super().__init__()
        self.state = state
        self._make = partial(sandbox, labels={LABEL: str(state.session_id)})
        self.sandbox = self._make()

    # The way of a session: `start`, `stop` saves the workspace, `shutdown`, `end`.

    async def _ensure_backend_started(self) -> None:
        self._set_start_state_preserved(await self._attached())
        if not self._workspace_state_preserved_on_start():
            self.state.workspace_root_ready = False
            await self.sandbox.aopen()
        self.state.nsm_session = self.sandbox.session

    async def _attached(self) -> bool:
        if self.state.nsm_session is None:
            return False
        if self.sandbox.session == self.state.nsm_session:  # it was started before
            with suppress(*GONE):
                await self._files(lambda files: files.stat("/"))
                return True
        self.sandbox = self._make(session=self.state.nsm_session)
        with suppress(*GONE):
            await self.sandbox.aopen()
            if self.sandbox.labels.get(LABEL) == str(self.state.session_id):
                return True
        self.sandbox = self._make()
        return False

    async def _prepare_backend_workspace(self) -> None:
        root = self.state.manifest.root
        if not any(f"{root}/".startswith(f"{place}/") for place in PLACES):
            raise WorkspaceStartError(
                path=self._workspace_root_path(),
                message=f"a workspace of nsm is in {' or '.join(PLACES)}, not {root}: give the "
                "manifest no root, or one of these",
                retryable=False,
            )
        await self._files(lambda files: files.mkdir(root, parents=True))

    def _wrap_start_error(self, error: Exception) -> Exception:
        if not isinstance(error, NsmError | OSError):
            return error
        path = self._workspace_root_path()
        return WorkspaceStartError(path=path, cause=error, message=str(error))

    async def running(self) -> bool:
        """Return whether the session is there, with its workspace."""
        if self.sandbox.session is None:
            return False
        with suppress(NsmError, OSError):
            return await self._files(lambda files: files.exists(self.state.manifest.root))
        return False

    async def end(self) -> None:
        """End the session, with all that runs in it. Another time does nothing."""
        with suppress(NsmError):
            if self.sandbox.session is None and self.state.nsm_session is not None:
                await self._attached()  # resumed and not started
        await self.sandbox.aclose()

    # Commands

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        if user:
            message = "a session of nsm has one user: leave `user` and `run_as` out"
            raise ExecTransportError(command=command, message=message, retryable=False)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(
        self,
        *command: str | Path,
        timeout: float | None = None,  # noqa: ASYNC109  # the framework's name
    ) -> ExecResult:
        if timeout is not None and timeout <= 0:
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        environ = await self.state.manifest.environment.resolve()
        with self._transport(command):
            done = await self.sandbox.execute_async(
                [str(part) for part in command],
                cwd=self.state.manifest.root,
                environ=environ,
                timeout_s=timeout,
            )
        if done.timed_out:
            begun = {"stdout": _text(done.stdout[:4096]), "stderr": _text(done.stderr[:4096])}
            raise ExecTimeoutError(command=command, timeout_s=timeout, context=begun)
        if done.missing:
            raise ExecTransportError(
                command=command,
                message=f"the command printed {done.missing:,} bytes more than the "
                f"{len(done.output):,} that are kept. Redirect its output to a file",
                retryable=False,
            )
        return ExecResult(stdout=done.stdout, stderr=done.stderr, exit_code=done.exit_code)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            row = await self.sandbox.ado(self.sandbox.open_port, port)
        except NsmError as error:
            raise ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context={"backend": "nsm", "detail": str(error)},
                cause=error,
            ) from error
        host, _, number = row.address.rpartition(":")
        return ExposedPortEndpoint(host=host, port=int(number), tls=False)

    # Files

    async def _files(self, call: Callable[[AsyncSessionFiles], Awaitable[T]]) -> T:
        return await self.sandbox.ado(self.sandbox.files, call)

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        policy = self._workspace_path_policy()
        place = policy.normalize_sandbox_path(path, for_write=for_write)
        if not self.state.manifest.extra_path_grants:
            with suppress(OSError, NsmError):
                if await self._files(
                    partial(_is_below, root=str(policy.sandbox_root()), path=place)
                ):
                    return posix_path_as_path(place)
        # The SDK's check, which runs two programs, decides the rest and words what it refuses.
        return await self._validate_remote_path_access(path, for_write=for_write)

    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    def _current_runtime_helper_cache_key(self) -> object | None:
        return self.sandbox.session

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file, of any size."""
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        place = str(await self._validate_path_access(path))
        spool = _spool()
        with _reading(path):
            await self._files(lambda files: files.read_to(place, spool.write))
        spool.seek(0)
        return spool

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = str(await self._validate_path_access(path))
        with _reading(path):
            return await self._files(lambda files: files.read(place, length=max_bytes))

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file, of any size, with the directories that are missing."""
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        stream = coerce_write_payload(path=path, data=data).stream
        first = stream.read(WHOLE_BYTES)
        place = await self._validate_path_access(path, for_write=True)

        async def write(files: AsyncSessionFiles) -> None:
            target = await resolved(files, str(place))
            await files.mkdir(posixpath.dirname(target), parents=True)
            await files.write_from(target, _chained(first, stream.read))

        with _writing(path):
            if len(first) < WHOLE_BYTES:
                await self.sandbox.ado(self.sandbox.write, str(place), first)
            else:
                await self._files(write)

    async def persist_workspace(self) -> io.IOBase:
        """Archive the workspace, as tar."""
        root = self._workspace_root_path()
        spool = _spool()
        with _reading(root):
            await self._files(lambda files: files.archive(str(root), spool.write))
            spool.seek(0)
            skip = self._persist_workspace_skip_relpaths()
            if skip:
                spool = await _in_a_thread(partial(_without, spool, skip))
        return spool

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack such an archive into the workspace."""
        root = self._workspace_root_path()
        spool = _spool()

        def check() -> None:
            while piece := data.read(WHOLE_BYTES):
                spool.write(piece)
            spool.seek(0)
            with tarfile.open(fileobj=spool) as tar:
                validate_tarfile(tar)
            spool.seek(0)

        with spool, _writing(root):
            await _in_a_thread(check)
            await self._files(lambda files: files.unpack(str(root), spool.read))


class NsmSandboxClient(BaseSandboxClient[BaseSandboxClientOptions | None]):
    """A client of the SDK that makes its sandboxes sessions of nsm.

    Args:
        socket_path: socket of the supervisor; None for the usual one.
        lasting: sessions that nobody deletes outlive the program, until their idle time, so that
            another program can resume them.
        settings: as of `nsm.Client.sandbox`; also of sessions that are resumed after they ended.
    """

    backend_id = "nsm"
    supports_default_options = True

    def __init__(
        self,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        socket_path: str | None = None,
        lasting: bool = False,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        self._lasting = lasting
        self._instrumentation = instrumentation or Instrumentation()
        self._dependencies = dependencies
        self._socket_path = socket_path
        self._settings = settings
        self._sandbox({})  # refuses unknown settings

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: BaseSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Describe a session, which begins when it is started.

        Args:
            options: also those of the SDK's local client, whose one option is that of nsm.
        """
        if options is not None and options.type not in ("nsm", "unix_local"):
            raise TypeError(f"options of {options.type!r} are none of nsm's")
        state = NsmSandboxSessionState(
            manifest=self._validate_manifest_for_create(manifest or Manifest()),
            snapshot=resolve_snapshot(None, "none"),
            exposed_ports=getattr(options, "exposed_ports", ()),
        )
        state.snapshot = resolve_snapshot(snapshot, str(state.session_id))
        return self._session(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Describe the session of a state. If it has ended, another one gets its snapshot."""
        if not isinstance(state, NsmSandboxSessionState):
            raise TypeError(f"a state of {state.type!r} is none of nsm's")
        state.assert_path_grants_rebound()
        return self._session(state)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session, with all that runs in it."""
        inner = session._inner  # noqa: SLF001  # as the SDK's own clients
        if not isinstance(inner, NsmSandboxSession):
            raise TypeError(f"a {type(inner).__name__} is none of nsm's sessions")
        await inner.end()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Read a saved state."""
        return self._deserialize_session_state_payload(payload, NsmSandboxSessionState)

    def _session(self, state: NsmSandboxSessionState) -> SandboxSession:
        manifest = state.manifest
        if manifest.users or manifest.groups:
            raise ValueError("a session of nsm has one user: leave the manifest's users out")
        for grant in manifest.extra_path_grants:
            if grant.host_path is not None:
                raise ValueError(
                    f"a session of nsm sees no path of the host such as {grant.host_path}: put "
                    "its files into the manifest, or give the client a `project`"
                )
        inner = NsmSandboxSession(state, self._sandbox)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    def _sandbox(self, labels: dict[str, str], session: str | None = None) -> AdapterSandbox:
        settings: Any = {**self._settings}
        settings["labels"] = {**(self._settings.get("labels") or {}), **labels}
        return AdapterSandbox(
            FRAMEWORK,
            session=session,
            socket_path=self._socket_path,
            keep=True,
            lasting=self._lasting,
            **settings,
        )


async def _in_a_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, and wait for its end even if this is cancelled."""
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


async def _is_below(files: AsyncSessionFiles, root: str, path: PurePosixPath) -> bool:
    """Return whether a path leads to something below a directory, or would if it were made."""
    above = f"{(await files.stat(root)).path}/"
    try:
        real = (await files.stat(str(path))).path
    except FileError:
        with suppress(FileError):
            await files.stat(str(path), follow=False)
            return False  # a link that leads to nothing
        real = f"{(await files.stat(str(path.parent))).path}/{path.name}"
    return f"{real}/".startswith(above)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _spool() -> Any:
    return tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # the caller closes it


def _chained(first: bytes, read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Read what was read before, then the rest."""
    left = [first]

    def read_on(size: int) -> bytes:
        if not left[0]:
            return read(size)
        piece, left[0] = left[0][:size], left[0][size:]
        return piece

    return read_on


def _without(archive: IO[bytes], skip: Iterable[Path]) -> Any:
    """Copy an archive without what is in some paths."""
    copy = _spool()
    with archive, tarfile.open(fileobj=archive) as tar, tarfile.open(fileobj=copy, mode="w") as to:
        for member in tar:
            if not should_skip_tar_member(member.name, skip_rel_paths=skip, root_name=None):
                to.addfile(member, tar.extractfile(member) if member.isreg() else None)
    copy.seek(0)
    return copy


@contextmanager
def _reading(path: Path) -> Generator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise WorkspaceReadNotFoundError(path=path, cause=error) from error
    except (OSError, NsmError, tarfile.TarError) as error:
        raise WorkspaceArchiveReadError(
            path=path, context={"reason": str(error)}, cause=error
        ) from error


@contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except UnsafeTarMemberError as error:
        raise WorkspaceArchiveWriteError(
            path=path, context={"reason": error.reason, "member": error.member}, cause=error
        ) from error
    except (OSError, NsmError, tarfile.TarError) as error:
        raise WorkspaceArchiveWriteError(
            path=path, message=f"cannot write {path}: {error}", cause=error
        ) from error
