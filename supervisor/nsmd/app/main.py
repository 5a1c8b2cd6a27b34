"""`nsm-supervisor`: reads arguments and environment, and runs the daemon, or prints one of its
reports.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial

from nsm import paths
from nsm._version import program_version
from nsm.shortage import EXIT_TEMPORARY, SHORTAGES
from nsmd.app import instance as instances
from nsmd.app import service_manager
from nsmd.app.instance import Instance, open_instance
from nsmd.fdstore.handover import VARIABLE as HANDED_OVER
from nsmd.fdstore.store import TRY_OPTION
from nsmd.host import logs
from nsmd.host.listeners import LockedError, PlaceError
from nsmd.host.logs import LogHandler
from nsmd.model.settings import Settings

STDERR = 2

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""128 + SIGINT and 128 + SIGPIPE, as in shells."""

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE_BYTES = 96 * 1024
"""Larger than a read from a socket (64 KiB), which each call does; smaller than a piece of output.
"""

FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
"""Searched after PATH: editors start programs with little or none of it."""


def main(arguments: list[str] | None = None) -> int:
    """Run the console script. Returns the exit code."""
    try:
        return _main(arguments)
    except* KeyboardInterrupt:  # alone or, from a nursery, in a group
        pass
    return EXIT_INTERRUPTED


def _main(arguments: list[str] | None) -> int:
    options = _parser().parse_args(arguments)
    config_path = options.config or os.path.join(paths.config_dir(), "config.toml")
    if options.try_only:
        return _try(config_path, strict=options.strict)
    if options.check_config or options.show_config or options.check_bridge or options.doctor:
        return _printed(lambda: _report(options, config_path))
    # Jails inherit what the program that starts a supervisor has blocked, as Ray's actors block
    # SIGINT. Code could then not be interrupted, only killed with its state.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    return _Starter(options.ready_fd).run(config_path, strict=options.strict)


def _printed(report: Callable[[], int]) -> int:
    """Print a report for whoever reads it, who may have gone. Returns the exit code."""
    text = io.StringIO()
    with redirect_stdout(text):
        code = report()
    try:
        if sys.stdout:  # there is none if it was closed from the start
            sys.stdout.write(text.getvalue())
            sys.stdout.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())  # else Python complains of what is buffered
        os.close(null)
        if isinstance(error, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        sys.stderr.write(f"nsm: standard output: {error.strerror}\n")
        return EXIT_FAILED
    return code


def _report(options: argparse.Namespace, config_path: str) -> int:
    if options.check_config or options.show_config:
        return _report_config(config_path, show=options.show_config, as_json=options.json)
    if options.check_bridge:
        from nsmd.bridge import definitions  # noqa: PLC0415 (not needed to serve)

        settings, _ = _load(config_path)
        return definitions.report(paths.tools_dir(), settings, as_json=options.json)
    from nsmd.doctor import report  # noqa: PLC0415 (not needed to serve)

    settings, problems = _load(config_path)
    return report.report(
        settings or Settings(), _search_path(), mistakes=problems, as_json=options.json
    )


def _unusable(settings: Settings) -> Iterator[str]:
    """Find what this machine lacks for the devices and images of the configuration."""
    if not any(each.devices or each.image for each in settings.environments.values()):
        return iter(())
    from nsmd.doctor.configured import why_unusable  # noqa: PLC0415 (rarely needed)
    from nsmd.environments.devices.nodes import device_host  # noqa: PLC0415
    from nsmd.jail.user import JailUser  # noqa: PLC0415

    host = device_host(JailUser(settings.defaults.jail_uid))
    return why_unusable(settings, _search_path(), host)


def _search_path() -> str:
    return f"{paths.search_path()}:{FALLBACK_PATH}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nsm-supervisor",
        allow_abbrev=False,
        description="Keeps jailed Python, Bash and Node sessions and serves them on a Unix socket. "
        "Clients start it by themselves; run it by hand to see its log.",
    )
    parser.add_argument(
        "--version", action="version", version=f"nsm-supervisor {program_version()}"
    )
    parser.add_argument("--config", metavar="FILE", help="instead of the user's config.toml")
    parser.add_argument(
        "--ready-fd",
        type=int,
        metavar="N",
        help="write a newline to this descriptor once the socket answers, or why it does not",
    )
    parser.add_argument("--check-config", action="store_true", help="check the configuration only")
    parser.add_argument("--show-config", action="store_true", help="show what is in effect")
    parser.add_argument("--check-bridge", action="store_true", help="check the bridge's programs")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="do not start if the bridge is on and a definition of a program is wrong",
    )
    parser.add_argument("--doctor", action="store_true", help="check what nsm needs on this host")
    parser.add_argument(
        TRY_OPTION,
        dest="try_only",
        action="store_true",
        help="load all that serving needs, and end",
    )
    parser.add_argument("--json", action="store_true", help="reports for programs")
    return parser


def _map_large_blocks() -> None:
    """Give each large block of memory pages of its own (mallopt(3), M_MMAP_THRESHOLD).

    glibc does so at first, but raises the threshold to 32 MiB as such blocks are freed. Outputs of
    megabytes then lie in the heap between small objects that stay, and after a burst the supervisor
    kept three times the memory that it used.
    """
    import ctypes  # noqa: PLC0415 (reports are quick without it)

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have neither this function nor this habit
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def _load(config_path: str) -> tuple[Settings | None, list[str]]:
    """Load the settings, or the mistakes in the file."""
    if not os.path.exists(config_path):
        return Settings(), []  # saves imports
    from nsmd.config import config_file  # noqa: PLC0415

    try:
        return config_file.load(config_path), []
    except config_file.ConfigError as error:
        return None, str(error).splitlines()


def _report_config(config_path: str, *, show: bool, as_json: bool) -> int:
    settings, problems = _load(config_path)
    if settings is None:
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        return EXIT_FAILED
    from nsmd.config import config_file  # noqa: PLC0415

    if not show:
        exists = "is valid" if os.path.exists(config_path) else "does not exist: defaults hold"
        sys.stdout.write(f"{config_path} {exists}\n")
        if unused := config_file.unused_keys(config_path):
            sys.stdout.write(f"The supervisor does not use: {', '.join(unused)}\n")
        sys.stdout.writelines(f"On this machine: {line}\n" for line in _unusable(settings))
    elif as_json:
        sys.stdout.write(json.dumps(config_file.dump(settings), indent=2) + "\n")
    else:
        sys.stdout.write(config_file.render(settings))
    return 0


def _definition_mistakes(settings: Settings | None, *, strict: bool) -> str:
    """Mistakes in definitions that keep a strict supervisor from starting; empty if
    there are none.
    """
    if not strict or settings is None:
        return ""
    from nsmd.bridge import definitions  # noqa: PLC0415

    return definitions.mistakes(paths.tools_dir(), settings)


def _try(config_path: str, *, strict: bool) -> int:
    """Load everything once, before a supervisor becomes this program."""
    settings, problems = _load(config_path)
    if settings is None:
        sys.stderr.write("".join(f"{problem}\n" for problem in problems))
        return EXIT_USAGE
    if mistakes := _definition_mistakes(settings, strict=strict):
        sys.stderr.write(f"{mistakes}\n")
        return EXIT_USAGE
    from nsmd.app import daemon, startup  # noqa: PLC0415
    from nsmd.fdstore import handover  # noqa: PLC0415
    from nsmd.jail import templates  # noqa: PLC0415

    del daemon, templates
    asked = None
    if sys.stdin is not None and not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        asked = handover.question_of(sys.stdin.read())
    if asked is not None and asked.handover != handover.VERSION:
        sys.stderr.write("it cannot take over from a supervisor of that version\n")
        return EXIT_USAGE
    sys.stdout.write(f"{program_version()}\n")
    if asked is not None:
        sys.stdout.write(f"{handover.answer_of(startup.unreadable(asked.records))}\n")
    return 0


class _Starter:
    """Steps from the first line to the event loop; reports failures to the process that
    started us.
    """

    def __init__(self, ready_fd: int | None) -> None:
        self._ready_fd = ready_fd

    def run(self, config_path: str, *, strict: bool) -> int:
        _fill_standard_streams()
        _log_to_stderr()
        settings, problems = _load(config_path)
        mistakes = "; ".join(problems) or _definition_mistakes(settings, strict=strict)
        if mistakes and not _is_waited_for():
            return self._fail(mistakes, EXIT_USAGE)
        # From here on only this user can read what is created.
        os.umask(0o077)
        try:
            with ExitStack() as stack:
                instance = open_instance(stack)
                if settings is not None and not mistakes:
                    instances.remember_config(config_path, paths.state_dir())
                elif instance.kept or instance.handed is not None:
                    # Sessions wait: a config mistake must not end them.
                    settings = settings or _last_settings(mistakes)
                else:
                    instances.refuse_waiting(instance.listener, mistakes)
                    return self._fail(mistakes, EXIT_USAGE)
                self._serve(settings, config_path, instance)
        except Exception as error:  # noqa: BLE001 (whatever it is, those who wait are told)
            code = self._crashed(error)
            _refuse_waiting(_words(error))
            return code
        return 0

    def _serve(self, settings: Settings, config_path: str, instance: Instance) -> None:
        import trio  # noqa: PLC0415 (reports are quick without it)

        from nsmd.app import daemon  # noqa: PLC0415
        from nsmd.app.startup import start_up  # noqa: PLC0415
        from nsmd.host.event_loop import AwakeClock, keep_reserve_thread  # noqa: PLC0415

        gc.freeze()
        gc.enable()
        _map_large_blocks()
        if "WATCHDOG_USEC" in os.environ:
            # systemd's watchdog ends a hanging loop by SIGABRT: the log then shows where it hung.
            faulthandler.enable()
        start = start_up(
            settings,
            instance,
            search_path=_search_path(),
            config_path=config_path,
            load_settings=partial(_load, config_path),
            announce=self._announce,
            crashed=self._crashed,
            command=own_command(),
        )
        keep_reserve_thread()
        try:
            trio.run(daemon.serve, start, clock=AwakeClock())
        except* KeyboardInterrupt:  # a second one, while the end is under way
            logging.getLogger(__name__).info("interrupted again")
        start.store.end()
        if start.silent is not None:
            start.silent.end()

    def _crashed(self, error: BaseException) -> int:
        """Tell the process that started us why this one ends; returns the exit code."""
        first = _first(error)
        if isinstance(first, KeyboardInterrupt):  # Ctrl-C before the signals are handled
            self._tell("it was interrupted while it started")
            return EXIT_INTERRUPTED
        if not isinstance(first, (PlaceError, service_manager.ServiceManagerError, OSError)):
            logging.getLogger(__name__).error("the supervisor has failed", exc_info=error)
        temporary = self._ready_fd is not None and _may_pass(first)  # only that one asks
        return self._fail(_words(error), EXIT_TEMPORARY if temporary else EXIT_FAILED)

    def _fail(self, message: str, code: int) -> int:
        self._tell(message)
        sys.stderr.write(f"nsm-supervisor: {message}\n")
        return code

    def _announce(self) -> None:
        self._tell("")
        service_manager.notify(os.environ, "READY=1")

    def _tell(self, message: str) -> None:
        """Write one line to the process that started us, which may be gone; an empty line means
        ready.
        """
        if self._ready_fd is None:
            return
        fd, self._ready_fd = self._ready_fd, None
        try:
            os.write(fd, message.replace("\n", " ").encode() + b"\n")
        except OSError:
            logging.getLogger(__name__).debug("nobody waits for the ready line")
        finally:
            os.close(fd)


def _first(error: BaseException) -> BaseException:
    """Return the first error of a group."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    return _first(error.exceptions[0])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def _words(error: BaseException) -> str:
    first = _first(error)
    known = isinstance(first, (PlaceError, service_manager.ServiceManagerError, OSError))
    return str(first) if known else f"{type(first).__name__}: {first}"


def _may_pass(error: BaseException) -> bool:
    """Return whether the next start may succeed without anybody's help."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    no_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return no_thread or isinstance(error, (LockedError, MemoryError))


def _is_waited_for() -> bool:
    """Return whether clients or sessions wait for this process."""
    return bool({"LISTEN_FDS", HANDED_OVER} & os.environ.keys())


def _refuse_waiting(why: str) -> None:
    """Tell waiting clients why there is no supervisor, unless sessions wait, too. Sessions need the
    next supervisor, which systemd starts in a moment, and clients may wait for that one.
    """
    with suppress(service_manager.ServiceManagerError):
        passed = service_manager.take_passed(os.environ)
        if passed.listener is not None and not passed.kept:
            instances.refuse_waiting(passed.listener, why)


def _last_settings(mistakes: str) -> Settings:
    """Load the last valid settings: a config mistake must not kill waiting sessions."""
    settings, _ = _load(instances.last_good(paths.state_dir()))
    logging.getLogger(__name__).error(
        "%s. %s, for the sessions that are here; `nsm reload --config` reads the file again",
        mistakes,
        "Defaults hold" if settings is None else "What was configured before holds on",
    )
    return settings or Settings()


def own_command() -> list[str]:
    """Command that starts the installed version of this program again."""
    if os.environ.get("NSM_SUPERVISOR"):
        return list(paths.supervisor_command())
    # That process has its answer; in the next program the number is another descriptor's.
    given = [each for each in sys.orig_argv[1:] if not each.startswith("--ready-fd=")]
    if "--ready-fd" in given:
        at = given.index("--ready-fd")
        del given[at : at + 2]
    # In the directory in which it was started, whose files may have changed meanwhile.
    return [sys.executable, "-P", *(each for each in given if each != "-P")]


def _fill_standard_streams() -> None:
    """Fill closed standard streams, so that no file opened later gets their numbers: log lines
    would go there.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, number in (("stdout", 1), ("stderr", STDERR)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False, encoding="utf-8"))  # noqa: SIM115


def _log_to_stderr() -> None:
    path = ""
    with suppress(paths.PathError):  # reported when it matters
        path = paths.log_path()
    handler = LogHandler(STDERR, path)
    handler.setFormatter(logs.formatter_for(sys.stderr, os.environ))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logs.limit_floods()
