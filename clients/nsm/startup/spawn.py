"""Start a supervisor, detached from whoever needs it first.

Apart from `start`, which most programs leave without needing this.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from nsm import paths
from nsm.shortage import EXIT_TEMPORARY, SHORTAGES

READY_TIMEOUT_S = 10.0
"""Time that a supervisor may take until it listens; its cold start is well under a second."""

MAX_LOG_BYTES = 10 * 1024 * 1024
"""A log larger than this is set aside as `supervisor.log.1` at the next start."""

ENDED = "it ended before it was ready"
"""Message about a supervisor that said nothing: most likely it was killed."""

_MAX_REPORT_BYTES = 4096

_PASSED_ON = frozenset(
    (
        "ALL_PROXY",
        "CURL_CA_BUNDLE",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LANG",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "NETRC",
        "NODE_EXTRA_CA_CERTS",
        "NO_PROXY",
        "PATH",
        "REQUESTS_CA_BUNDLE",
        "SHELL",
        "TMPDIR",
        "TZ",
        "USER",
        "UV_CONFIG_FILE",
        "UV_CONSTRAINT",
        "UV_DEFAULT_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_FIND_LINKS",
        "UV_INSECURE_HOST",
        "UV_NO_CONFIG",
        "VIRTUAL_ENV",
        "all_proxy",  # nix and builds of packages reach the network by them
        "http_proxy",
        "https_proxy",
        "no_proxy",
    )
)
_PASSED_ON_PREFIXES = (
    *("LC_", "NIX_", "NSM_", "NVM_", "PYENV_", "PYTHON", "SSL_CERT_", "XDG_"),
    # Where packages come from. Others of uv's have tokens for uploads.
    *("NPM_CONFIG_", "PIP_", "UV_HTTP_", "UV_INDEX", "npm_config_"),
)
_CLIENTS_OWN = frozenset({"NSM_SCOPE", "NSM_BRIDGE", "NSM_HOST", "NSM_HOST_PROJECT", "NSM_SSH"})
_CLIENTS_OWN_PREFIX = "NIX_SANDBOX_"
"""The supervisor serves every client for days: it gets neither the keys and tokens in the
environment of whoever came first, but for those of package indexes, nor that client's settings,
which travel in its attachment.
"""

_SIGNALLED = 128
"""Exit codes from here on are of programs that a signal ended, as in shells."""

# Forks and lets the parent end, so that the supervisor is nobody's child: a shim that lives for
# days would else keep it as a zombie after `nsm shutdown`. Forking in this process instead is
# unsafe where it has threads.
_DETACH = "import os, sys; os.fork() and os._exit(0); os.execv(sys.argv[1], sys.argv[1:])"


# The same, with an exit code: the supervisor's own, if that ends before the starter ends this
# program. If the starter was killed, the alarm ends it. The last argument is the descriptor on
# which the starter waits.
_DETACH_AND_WATCH = f"""
import os, sys
try:
    if not os.fork():
        os.execv(sys.argv[1], sys.argv[1:])
except OSError as error:
    os.write(int(sys.argv[-1]), f"its process can't be started: {{error}}\\n".encode())
    os._exit({EXIT_TEMPORARY} if error.errno in {set(SHORTAGES)} else 1)
import signal
signal.alarm({int(READY_TIMEOUT_S) + 5})
code = os.waitstatus_to_exitcode(os.wait()[1])
os._exit(code if code >= 0 else {EXIT_TEMPORARY})
"""


def spawn(path: str) -> tuple[str, bool]:
    """Start a supervisor, detached, and wait until it is ready.

    Returns nothing when it says that it listens, else why not, in its own words; and whether
    another start would end in the same way."""
    program = paths.supervisor_command()
    if not os.access(program[0], os.X_OK):  # else only the log would know
        return f"its program {program[0]!r} can't be started: not there, or not executable", True
    read_end, write_end = os.pipe()
    log = _open_log()
    logged = os.fstat(log).st_size
    command = [*program, "--ready-fd", str(write_end)]
    try:
        launcher = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _DETACH_AND_WATCH, *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=supervisor_environment(path),
            pass_fds=(write_end,),  # and not the starters' lock, which would be held for life
            start_new_session=True,
            umask=0o077,
        )
    except OSError as error:
        os.close(read_end)
        os.close(log)
        return f"its process can't be started: {error}", error.errno not in SHORTAGES
    finally:
        os.close(write_end)
    report, code = "", 0
    try:
        report = _wait_ready(read_end)
        if report:
            code = launcher.wait(READY_TIMEOUT_S)
    except TimeoutError as error:
        report = str(error)
    except subprocess.TimeoutExpired:  # it hangs at its end
        pass
    else:
        # Signals, and so those who kill supervisors, say nothing about the next start.
        final = 0 < code < _SIGNALLED and code != EXIT_TEMPORARY
        if final and report == ENDED:
            report = _last_line(log, logged) or ENDED
        return report, final
    finally:
        os.close(read_end)
        os.close(log)
        launcher.kill()
        launcher.wait()
    return report, False


def _last_line(log: int, start: int) -> str:
    """The last line of the log after its beginning, as of a program that could not be loaded."""
    try:
        with open(f"/proc/self/fd/{log}", "rb") as file:
            file.seek(max(start, os.fstat(log).st_size - _MAX_REPORT_BYTES))
            data = file.read(_MAX_REPORT_BYTES)
    except OSError:
        return ""
    return data.decode(errors="replace").strip().rpartition("\n")[2]


def detached() -> tuple[str, ...]:
    """The beginning of a command that starts the rest as nobody's child, and ends."""
    return (sys.executable, "-I", "-S", "-c", _DETACH)


def _wait_ready(pipe: int) -> str:
    """Wait for a newline, which means ready, or for one line that says why not, and return what is
    before it. TimeoutError: it does not say."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    deadline = time.monotonic() + READY_TIMEOUT_S
    report = b""
    while b"\n" not in report and len(report) < _MAX_REPORT_BYTES:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(
                f"it has not got ready within {READY_TIMEOUT_S:.0f} s; it may be starting still"
            )
        data = os.read(pipe, _MAX_REPORT_BYTES)
        if not data:
            return report.decode(errors="replace") or ENDED
        report += data
    return report.partition(b"\n")[0].decode(errors="replace")


def supervisor_environment(path: str) -> dict[str, str]:
    """Variables of a supervisor with its socket at this path: those that are passed on to it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON
        or (
            name.startswith(_PASSED_ON_PREFIXES)
            and name not in _CLIENTS_OWN
            and not name.startswith(_CLIENTS_OWN_PREFIX)
        )
    }
    environment["NSM_SOCKET"] = path
    return environment


def _open_log() -> int:
    """The supervisor's log, opened for appending; `/dev/null` where there can be none.

    Whoever takes over a process of the supervisor that gave up its rights cannot read it.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        log = paths.log_path()
        os.makedirs(os.path.dirname(log), mode=0o700, exist_ok=True)
        descriptor = os.open(log, flags, 0o600)
        if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
            os.close(descriptor)
            os.replace(log, log + ".1")
            descriptor = os.open(log, flags, 0o600)
    except OSError:
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    return descriptor
