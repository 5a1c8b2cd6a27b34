"""Jobs of sessions: the part of `nsm.Client` that starts and finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.projects import ProjectCalls
from nsm.client.steps import Calls

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from nsm.client.job_steps import JobSettings
    from nsm.client.jobs import Job
    from nsm.wire.jobs import JobInfo
    from nsm.wire.messages import Hello


class JobCalls(Calls, ProjectCalls):
    """Calls about jobs. `nsm.Client` is one of these."""

    @property
    def server(self) -> Hello:
        """The supervisor: the client's part."""
        raise NotImplementedError

    def exec(self, session: str, argv: Sequence[str], **settings: Unpack[JobSettings]) -> Job:
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
            project, mount_point, project_mode, network, secrets, must_exist: as in `run`.

        Raises:
            JobError: the program cannot be started; the message says why.
            NsmError: there is no such session, and none could be made.
        """
        from nsm.client import job_steps, jobs  # noqa: PLC0415  # few programs start jobs

        inherit = self.server.inherit
        started = self.carry_out(job_steps.start(self, session, argv, settings, inherit))
        job = jobs.Job(self, started.session.id, started.job, started)
        stdin = settings.get("stdin")
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
        from nsm.client import job_steps, jobs  # noqa: PLC0415  # few programs ask

        return jobs.Job(self, session, self.carry_out(job_steps.find(session, job_id)))

    def jobs(self, session: str) -> list[JobInfo]:
        """The jobs of a session that run, and the last ones that have ended, oldest first."""
        from nsm.client import job_steps  # noqa: PLC0415  # few programs ask

        return self.carry_out(job_steps.list_all(session))
