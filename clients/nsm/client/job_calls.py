"""Jobs of sessions: the part of `nsm.Client` that starts and finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.projects import DEFAULT, ProjectCalls
from nsm.wire.answers import read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from nsm.client.jobs import Job, TerminalSize
    from nsm.client.projects import ProjectArgument
    from nsm.wire.jobs import JobInfo
    from nsm.wire.messages import Hello


class JobCalls(ProjectCalls):
    """Calls about jobs. `nsm.Client` is one of these."""

    def call(self, op: str, args: dict[str, Any] | None = None) -> dict[str, Any]:
        """Any operation: the client's part."""
        raise NotImplementedError

    @property
    def server(self) -> Hello:
        """The supervisor: the client's part."""
        raise NotImplementedError

    def exec(
        self,
        session: str,
        argv: Sequence[str],
        *,
        env: str = "",
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
        stdin: bytes | bool = False,
        tty: TerminalSize | None = None,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        project: ProjectArgument = DEFAULT,
        mount_point: str | None = None,
        project_mode: str | None = None,
        network: str | None = None,
        existing: bool = False,
    ) -> Job:
        """Start a program in a session, beside its interpreter.

        It is the session's: it runs on when this client or the supervisor ends, and ends with the
        session.

        Example::

            with nsm.Client() as client:
                result = client.exec("work", ["ls", "-l"], env="bash").collect()
                assert result.exit_code == 0

        Args:
            session: its name; it is made where there is none. ``new`` for a fresh name.
            argv: the program and its arguments. No shell sees them; for a line of shell, use
                ``["sh", "-c", line]``.
            env: environment of a new session; empty for the configured one, or else ``bash``.
            cwd: working directory in the session; relative to its workspace, which is the default.
            environ: variables besides the session's.
            stdin: the program's whole input, of which it may leave some unread; or True to
                `Job.write` it; without, it is empty.
            tty: rows and columns of a terminal for it; without, it has pipes.
            timeout_s: seconds until it is stopped; None for no limit.
            wait_s: seconds to wait, at most one, for its first output or its end. What comes then
                needs no other exchange, which makes short programs faster.
            project, mount_point, project_mode, network, existing: as in `run`.

        Raises:
            JobError: the program cannot be started; the message says why.
            NsmError: there is no such session, and none could be made.
        """
        from nsm.client import jobs, operations  # noqa: PLC0415  # few programs start jobs
        from nsm.wire.jobs import StartedJob  # noqa: PLC0415  # likewise

        def arguments(**given: Any) -> dict[str, Any]:
            where = operations.where_arguments(
                env=env,
                session=session,
                mount_point=mount_point,
                project_mode=project_mode,
                network=network,
                existing=existing,
                inherit=self.server.inherit,
                **given,
            )
            return jobs.start_arguments(
                argv,
                where,
                cwd=cwd,
                environ=environ,
                stdin=stdin,
                tty=tty,
                timeout_s=timeout_s,
                wait_s=wait_s,
            )

        wire = self.call_in(
            project, project_mode, lambda args: self.call("job_start", args), arguments
        )
        started = read(StartedJob, wire)
        job = jobs.Job(self, started.session.id, started.job)
        job.began(started)
        if isinstance(stdin, bytes) and stdin:
            job.feed(stdin)
        return job

    def job(self, session: str, job_id: str) -> Job:
        """The handle of a job that somebody has started.

        Args:
            session: an id, a name or ``scope/name``.

        Raises:
            UnknownJobError: the session has no such job.
        """
        from nsm.client import jobs  # noqa: PLC0415  # few programs ask
        from nsm.wire.jobs import JobInfo  # noqa: PLC0415  # likewise

        args = {"target": session, "job": job_id, "bytes": 0}
        return jobs.Job(self, session, read(JobInfo, self.call("job_read", args), "job"))

    def jobs(self, session: str) -> list[JobInfo]:
        """The jobs of a session that run, and the last ones that have ended, oldest first."""
        from nsm.wire.jobs import JobInfo  # noqa: PLC0415  # few programs ask

        return read(list[JobInfo], self.call("job_list", {"target": session}), "jobs")
