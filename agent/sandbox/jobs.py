"""Jobs of the session: requests about them, and their answers."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import signal
import time

from sandbox.capture import cut_character
from sandbox.framing import (
    GRACE_S,
    RequestError,
    are_arguments,
    as_object,
    as_texts,
    data_field,
    is_argument,
    seconds_field,
    text_field,
    whole_field,
)
from sandbox.job import JobProcess
from sandbox.job_output import OutputStore
from sandbox.job_start import JobRefusal, terminal_type, write_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    import resource
    from collections.abc import Mapping
    from typing import Any

    from sandbox.interpreters.base import Interpreters
    from sandbox.processes import ProcessTrees
    from sandbox.session import SharedSession


MAX_JOBS = 256
"""Jobs that run at a time."""

KEPT_JOBS = 1000
"""Jobs that have ended and are still known, with their output; the oldest is forgotten first."""

KEPT_KEYS = 10_000
"""Jobs that are known by their keys, for clients that repeat a request to start one."""

KEPT_WRITES = 32
"""Pieces of input of a job that are known by their keys, for the same reason."""

KEPT_READS = 32
"""Readers of a job that are known by their names, for the same reason."""

MAX_READ = 256 * 1024
"""Bytes of output in one answer, before base64."""

MAX_WAIT_S = 60.0

READER_S = 60.0
"""How long after its last request a reader keeps the agent from dropping what it has not read."""

MAX_WAITING = 64
"""Requests about one job that wait for something to happen."""

MAX_SIDE = 10_000
"""Rows or columns of a terminal."""

JOB_REQUESTS = (
    "job_start",
    "job_read",
    "job_write",
    "job_signal",
    "job_stop",
    "job_resize",
    "job_list",
)


class Jobs:
    """The jobs of the session, and who waits for them. Made when the first one is asked for."""

    def __init__(
        self, session: SharedSession, trees: ProcessTrees, interpreters: Interpreters
    ) -> None:
        self._session = session
        self._trees = trees
        self._interpreters = interpreters
        trees.had_jobs = True
        trees.exit_handlers.append(self._on_exit)
        self._store = OutputStore("/tmp")  # noqa: S108  # the session's own
        self._jobs: dict[str, JobProcess] = {}
        self._live: dict[int, JobProcess] = {}
        self._keys: dict[str, str] = {}
        self._paused: set[JobProcess] = set()
        self._count = 0
        self._waiting: dict[str, list[Mapping[str, Any]]] = {}

    @property
    def live(self) -> list[str]:
        """Ids of the jobs that run."""
        return [job.id for job in self._live.values()]

    def take(self, request_id: str | int, message: Mapping[str, Any]) -> None:
        """Answer a request, now or when there is something to tell."""
        try:
            kind = message["type"]
            if kind == "job_start":
                known = self._keys.get(str(message.get("key")))
                job = self._start(message) if known is None else self._known(known)
                if message.get("wait_s"):
                    self._answer_or_wait(job, {**message, "known": known is not None})
                else:
                    self._send_facts(request_id, job, known=known is not None)
            elif kind == "job_list":
                facts = [job.facts() for job in self._jobs.values()]
                self._session.send({"type": "jobs", "id": request_id, "jobs": facts})
            else:
                self._about(request_id, self._job(message), message)
        except (JobRefusal, RequestError) as error:
            self._fail(request_id, error)

    def _fail(self, request_id: str | int, error: JobRefusal | RequestError) -> None:
        number = error.number if isinstance(error, JobRefusal) else errno.EINVAL
        code = errno.errorcode.get(number, "")
        answer = {"type": "job_error", "id": request_id, "message": str(error), "code": code}
        self._session.send(answer)

    def _send_facts(self, request_id: str | int, job: JobProcess, *, known: bool = False) -> None:
        self._session.send({"type": "job", "id": request_id, "job": job.facts(), "known": known})

    # Start and end.

    def _start(self, message: Mapping[str, Any]) -> JobProcess:
        argv: Any = message.get("argv")
        code, interpreter = message.get("code"), message.get("interpreter")
        if code is not None:
            code = text_field(message, "code")
            argv = [self._interpreters.named(interpreter).program]
        cwd, env = message.get("cwd"), as_texts(message.get("env"))
        timeout_s = seconds_field(message, "timeout_s", None)
        grace_s = seconds_field(message, "grace_s", GRACE_S)
        if not are_arguments(argv):
            raise JobRefusal("argv must be a list of texts without NUL, the program first")
        if env is None:
            raise JobRefusal("env must have names of variables, and values without NUL")
        if not (cwd is None or is_argument(cwd)):
            raise JobRefusal("cwd must be a path")
        size = None
        terminal: Any = message.get("tty")
        if terminal is not None:
            size = _size_of(terminal)
            env = {"TERM": terminal_type(terminal.get("term"), os.environ), **env}
        if len(self._live) >= MAX_JOBS:
            raise JobRefusal(
                f"{MAX_JOBS} jobs run in this session, which is the limit: stop one first",
                errno.EAGAIN,
            )
        if not self._count:
            self._trees.note_before_another()
        cwd = os.path.join(self._session.workspace, cwd) if cwd else self._session.workspace
        file = None
        if code is not None:
            its = self._interpreters.named(interpreter)
            text = (*(step.code for step in its.setup), code)
            *argv, file = write_program(its.name, its.program, text, cwd)
            argv.append(file)
        log = self._store.open_log(time.monotonic)
        try:
            job = JobProcess(
                self._session,
                str(self._count + 1),
                argv,
                cwd=cwd,
                env=env,
                stdin=message.get("stdin") is True,
                tty=size,
                log=log,
                changed=self._changed,
                paused=self._on_paused,
            )
        except JobRefusal:
            self._store.forget(log)
            _remove(file)
            raise
        job.file = file
        self._count += 1
        self._jobs[job.id] = self._live[job.pid] = job
        self._trees.jobs.append(job)
        if isinstance(key := message.get("key"), str):
            self._keys[key] = job.id
            if len(self._keys) > KEPT_KEYS:
                del self._keys[next(iter(self._keys))]
        if timeout_s is not None:
            self._session.poller.at(
                f"job {job.id} limit", job.started + timeout_s, lambda: self._on_limit(job, grace_s)
            )
        return job

    def _on_limit(self, job: JobProcess, grace_s: float) -> None:
        job.timed_out = True
        self._stop(job, grace_s)

    def _stop(self, job: JobProcess, grace_s: float) -> None:
        """Interrupt a job; if it goes on, send SIGTERM, then kill it with all that it started.

        Of a job that has ended, kill what it has left behind.
        """
        if not job.pid:
            self._trees.kill_left(job)
        if not job.pid or job.stopping:
            return
        job.stopping = True
        # What becomes an orphan from now on is the job's.
        self._trees.note_others_orphans(job)
        now = time.monotonic()
        self._session.poller.at(f"job {job.id} term", now + grace_s / 2, lambda: self._end(job))
        self._session.poller.at(f"job {job.id} kill", now + grace_s, lambda: self._kill(job))
        job.interrupt()
        job.go_on()

    def _end(self, job: JobProcess) -> None:
        if job.pid:
            job.send_signal(signal.SIGTERM)
            job.go_on()

    def _kill(self, job: JobProcess) -> None:
        if job.pid:
            self._trees.kill(job)

    def _on_exit(self, pid: int, wait_status: int, usage: resource.struct_rusage) -> None:
        """Handle the end of a child of the agent, if the child is a job."""
        job = self._live.get(pid)
        if job is None:
            return
        timers = ("limit", "term", "kill", "oom", "news")
        self._session.poller.cancel(*(f"job {job.id} {timer}" for timer in timers))
        self._trees.note_orphans(job)
        if job.stopping:
            self._trees.kill(job)
        del self._live[pid]
        self._trees.jobs.remove(job)
        job.has_ended(wait_status, usage)
        _remove(job.file)
        self._session.poller.at(f"job {job.id} ended", 0.0, lambda: self._tell_end(job))

    def _tell_end(self, job: JobProcess) -> None:
        with self._session.channel.together():
            self._on_news(job)  # answers to those who wait come first
            self._session.send({"type": "job_ended", "job": job.facts()})
        self._forget_old()

    def _forget_old(self) -> None:
        if len(self._jobs) - len(self._live) > KEPT_JOBS:
            job = next(each for each in self._jobs.values() if not each.pid)
            del self._jobs[job.id]
            for request in self._waiting.pop(job.id, ()):
                self._session.poller.cancel(_timer(request))
                self._fail(request["id"], _unknown(job.id))
            self._paused.discard(job)
            job.close()
            self._store.forget(job.log)

    # Requests about a job.

    def _job(self, message: Mapping[str, Any]) -> JobProcess:
        return self._known(text_field(message, "job"))

    def _known(self, job_id: str) -> JobProcess:
        job = self._jobs.get(job_id)
        if job is None:
            if job_id.isdecimal() and 0 < int(job_id[:9]) <= self._count:
                raise _unknown(job_id)
            raise JobRefusal(f"there is no job {job_id!r:.50} in this session", errno.ESRCH)
        return job

    def _about(self, request_id: str | int, job: JobProcess, message: Mapping[str, Any]) -> None:
        kind = message["type"]
        if kind in {"job_read", "job_write"}:
            self._answer_or_wait(job, message)
            return
        if kind == "job_signal":
            number = whole_field(message, "signal", 0, high=signal.SIGRTMAX)
            if number == signal.SIGINT:
                job.interrupt()
            else:
                job.send_signal(number)
        elif kind == "job_stop":
            self._stop(job, seconds_field(message, "grace_s", GRACE_S))
        else:
            job.resize(*_size_of(message))
        self._send_facts(request_id, job)

    def _answer_or_wait(self, job: JobProcess, message: Mapping[str, Any]) -> None:
        wait_s = min(seconds_field(message, "wait_s", 0), MAX_WAIT_S)
        waiting = self._waiting.setdefault(job.id, [])
        if not self._settle(job, message, last=wait_s == 0 or len(waiting) >= MAX_WAITING):
            waiting.append(message)
            self._session.poller.at(
                _timer(message),
                time.monotonic() + wait_s,
                lambda: self._on_waited(job, message),
            )

    def _on_waited(self, job: JobProcess, message: Mapping[str, Any]) -> None:
        self._waiting[job.id].remove(message)
        self._settle(job, message, last=True)

    def _changed(self, job: JobProcess) -> None:
        """Answer requests that wait, in this turn: a job has printed, read or ended."""
        if self._waiting.get(job.id):
            self._session.poller.at(f"job {job.id} news", 0.0, lambda: self._on_news(job))

    def _on_news(self, job: JobProcess) -> None:
        waiting, self._waiting[job.id] = self._waiting.get(job.id, []), []
        for message in waiting:
            if not self._settle(job, message, last=False):
                self._waiting[job.id].append(message)

    def _settle(self, job: JobProcess, message: Mapping[str, Any], *, last: bool) -> bool:
        """Answer a request if there is something to tell, and the last time in any case."""
        answer = self._write if message["type"] == "job_write" else self._read
        try:
            settled = answer(job, message, last=last)
        except (JobRefusal, RequestError) as error:
            self._fail(message["id"], error)
            settled = True
        if settled:
            self._session.poller.cancel(_timer(message))
        return settled

    def go_on(self) -> None:
        """Answer what waited for the supervisor to catch up."""
        for job_id, waiting in self._waiting.items():
            if waiting:
                self._changed(self._jobs[job_id])

    def forget_requests(self) -> None:
        """Nobody waits any more: whoever asked is gone."""
        for waiting in self._waiting.values():
            for message in waiting:
                self._session.poller.cancel(_timer(message))
            waiting.clear()

    def _read(self, job: JobProcess, message: Mapping[str, Any], *, last: bool) -> bool:
        count, reader = (
            whole_field(message, "bytes", MAX_READ, high=MAX_READ),
            message.get("reader"),
        )
        if isinstance(reader, str):
            self._read_on(job, message, reader, count)
            return True
        offset = whole_field(message, "offset", 0, high=job.log.size)
        if message.get("hold") is True:
            self._hold(job, offset)
        lags = not self._session.may_send()
        has_news = job.wait_status is not None or (count > 0 and offset < job.log.size)
        if not last and (lags or not has_news):
            return False
        self._send_output(job, message, offset, 0 if lags else count)
        return True

    def _read_on(
        self, job: JobProcess, message: Mapping[str, Any], reader: str, count: int
    ) -> None:
        """Answer a new reader with the output after that of all earlier ones; a known reader gets
        the same output again.
        """
        offset, size = job.answered_reads.get(reader, (job.next_read_offset, count))
        begin, _, data = job.log.read(offset, min(count, size))
        follows = job.wait_status is None or begin + len(data) < job.log.size
        whole = len(data) - (cut_character(data) if follows else 0)
        end = self._send_output(job, message, offset, whole)
        if reader not in job.answered_reads:
            job.answered_reads[reader] = offset, whole
            job.next_read_offset = end
            if len(job.answered_reads) > KEPT_READS:
                del job.answered_reads[next(iter(job.answered_reads))]

    def _send_output(
        self, job: JobProcess, message: Mapping[str, Any], offset: int, count: int
    ) -> int:
        """Answer with output; returns the offset of its end."""
        begin, pieces, data = job.log.read(offset, count)
        answer: dict[str, Any] = {
            "type": "job_output",
            "id": message["id"],
            "offset": begin,
            "missing": begin - offset,
            "pieces": pieces,
            "data": base64.b64encode(data).decode(),
            "job": job.facts(),
        }
        if "known" in message:
            answer["known"] = message["known"]
        self._session.send(answer)
        return begin + len(data)

    def _hold(self, job: JobProcess, offset: int) -> None:
        job.log.hold(offset, time.monotonic() + READER_S)
        if self._paused:
            self._resume_output()

    def _on_paused(self, job: JobProcess) -> None:
        """Note that a job waits for its reader; it goes on when the reader's time is over."""
        self._paused.add(job)
        self._session.poller.at(f"job {job.id} hold", job.log.held_until, self._resume_output)

    def _resume_output(self) -> None:
        waiting, self._paused = self._paused, set()
        for job in waiting:
            job.resume_output()

    def _write(self, job: JobProcess, message: Mapping[str, Any], *, last: bool) -> bool:
        ends, key = message.get("eof") is True, message.get("key")
        data = data_field(message)
        taken = job.written.get(key) if isinstance(key, str) else None
        if taken is None:
            before_it = any(each["type"] == "job_write" for each in self._waiting.get(job.id, ()))
            if data and not last and (before_it or not job.has_room):
                return False
            taken = job.write(data) if data else 0
            if ends and taken == len(data):
                job.end_input()
            if isinstance(key, str):
                job.written[key] = taken
                if len(job.written) > KEPT_WRITES:
                    del job.written[next(iter(job.written))]
        answer = {"type": "job_written", "id": message["id"], "taken": taken}
        self._session.send({**answer, "job": job.facts()})
        return True


def _timer(message: Mapping[str, Any]) -> str:
    return f"job request {message['id']}"


def _unknown(job_id: str) -> JobRefusal:
    return JobRefusal(
        f"job {job_id} has ended, and only the last {KEPT_JOBS} such jobs are kept", errno.ESRCH
    )


def _remove(file: str | None) -> None:
    if file is not None:
        with contextlib.suppress(OSError):
            os.unlink(file)


def _size_of(given: object) -> tuple[int, int]:
    """Rows and columns of a terminal. Raise RequestError if they are none."""
    size = as_object(given) or {}
    rows, columns = (
        whole_field(size, name, None, low=1, high=MAX_SIDE) for name in ("rows", "columns")
    )
    if rows is None or columns is None:
        raise RequestError("a terminal needs rows and columns")
    return rows, columns
