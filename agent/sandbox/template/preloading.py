"""Modules that are imported before any fork, and what they leave behind."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time

from sandbox.linux import gpu_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence


COMMON = """
    abc argparse array ast base64 bisect calendar collections contextlib copy csv datetime
    decimal difflib enum errno fnmatch fractions functools getpass glob hashlib heapq inspect
    io itertools json linecache locale logging math numbers operator pathlib pickle platform pprint
    queue random re secrets shlex shutil signal socket string struct subprocess
    tempfile textwrap threading time timeit tokenize traceback types typing unicodedata urllib.parse
    uuid warnings weakref zlib
"""
"""Modules that a fork has without importing them: most code begins with some of these. All are safe
to fork: none starts a thread, and those with random numbers seed themselves again in a fork.
"""

SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Asked of numeric libraries while they are preloaded: who has threads must not be forked."""

MAX_REASON = 300

SCRATCH = ("/workspace", "/tmp")  # noqa: S108 - in the jail
"""Directories that modules may write to while they are preloaded. They are emptied afterwards, and
each fork mounts file systems of its own there."""

OWN_PLACES = ("/run/nsm", "/proc", "/dev", *SCRATCH)
"""Directories of the jail itself: files that are loaded from there are not the host's."""

HOST_TREE = "/run/nsm/host"
"""Files of the host in a jail whose root directory is a container image's."""

MAX_LOADED_DIRECTORIES = 256
MAX_LOADED_BYTES = 40 * 1024
"""Bounds of the list of loaded files: the whole message must be smaller than 64 KiB."""

MAX_SCRATCH_DIRECTORIES = 64
"""Empty ones that each fork gets, since a preloaded module may count on those that it has made."""


class UnforkableError(Exception):
    """An imported module has left behind what forks cannot have each for itself."""

    def __init__(self, module: str, why: str) -> None:
        super().__init__(module, why)
        self.module = module
        self.why = why


@contextlib.contextmanager
def collect_fork_hooks() -> Generator[list[Mapping[str, Callable[[], object]]], None, None]:
    """Collect the functions that modules register to run around forks; sessions register them.

    Most of these functions reset locks that another thread may hold at a fork. A template has one
    thread, which holds none, and the functions would copy hundreds of pages of memory in each of
    its forks. When code in a session forks, they run as usual.

    Yields:
        The arguments of each call of `os.register_at_fork`.
    """
    hooks: list[Mapping[str, Callable[[], object]]] = []
    register = os.register_at_fork

    def collect(**given: Callable[[], object]) -> None:
        if os.register_at_fork is collect:
            hooks.append(given)
        else:  # a module has kept the name, and calls it in a session
            register(**given)

    os.register_at_fork = collect  # type: ignore[assignment]
    try:
        yield hooks
    finally:
        os.register_at_fork = register


def preload(wanted: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, float]]:
    """Import the common modules and the wanted ones.

    Returns:
        Wanted modules that cannot be imported, and the exception of each in one line; the others,
        and the seconds that the import of each took.

    Raises:
        UnforkableError: one uses a GPU, has started a thread, or made shared memory. Only a new
            process is without it.
    """
    for name in COMMON.split():
        with contextlib.suppress(ImportError):  # a Python may be built without
            importlib.import_module(name)
    added = [name for name in SINGLE_THREADED if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    failed: dict[str, str] = {}
    imported: dict[str, float] = {}
    for name in wanted:
        began_s = time.monotonic()
        try:
            importlib.import_module(name)
            imported[name] = round(time.monotonic() - began_s, 3)
        except BaseException as error:
            failed[name] = one_line(f"{type(error).__name__}: {error}")
        # First, since a driver has threads, too.
        if gpu := gpu_of("self"):
            why = (
                f"it uses the GPU ({gpu}) while it is imported, and no fork could use it then: "
                "import it in sessions"
            )
            raise UnforkableError(name, why)
        if len(os.listdir("/proc/self/task")) > 1:
            why = "it starts a thread, and a process with threads cannot be forked"
            raise UnforkableError(name, why)
        if has_shared_memory():
            why = "it makes shared memory, which all sessions would share"
            raise UnforkableError(name, why)
    for name in added:
        del os.environ[name]
    return failed, imported


def one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_REASON]


def empty_scratch() -> Sequence[str]:
    """Remove what modules have written; return the directories that were there."""
    directories: list[str] = []
    for top in SCRATCH:
        if not os.access(top, os.W_OK):
            continue  # as in a jail without
        for folder, folders, files in os.walk(top, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                path = os.path.join(folder, name)
                if os.path.islink(path):
                    os.unlink(path)
                else:
                    os.rmdir(path)
                    directories.append(path)
    return sorted(directories)[:MAX_SCRATCH_DIRECTORIES]


def has_shared_memory() -> bool:
    """Return whether there is memory that all forks could write to and share.

    Files outside the scratch are not: they cannot be written to in a template's jail.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, permissions, _, _, _, *path = line.split(None, 5)
            if permissions[3] != "s":
                continue
            # What has no name or lost it may be made writable later, see mprotect(2).
            if "w" in permissions or line.endswith(" (deleted)\n"):
                return True
            if path and path[0].startswith(tuple(f"{top}/" for top in SCRATCH)):
                return True
    return False


def loaded_files() -> Mapping[str, Sequence[str]]:
    """Files that this process was made of, to be watched: their names by directory.

    Mapped files come first, then modules, those of a package's top before those below: there is a
    bound on the message, and an upgrade changes the top.
    """
    paths: dict[str, None] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            _, _, _, _, _, *mapped = line.rstrip("\n").split(None, 5)
            if mapped and mapped[0].startswith("/"):
                paths.setdefault(mapped[0].replace(" (deleted)", ""))
    modules = [getattr(module, "__file__", None) for module in tuple(sys.modules.values())]
    named = [path for path in modules if isinstance(path, str) and path.startswith("/")]
    for path in sorted(named, key=lambda path: path.count("/")):
        paths.setdefault(path)
    loaded: dict[str, list[str]] = {}
    size = 0
    for path in paths:
        directory, name = os.path.split(path)
        if directory.startswith(OWN_PLACES) and not directory.startswith(HOST_TREE):
            continue
        known = directory in loaded
        # ASCII, as JSON has it, with quotes and separators.
        size += len(json.dumps(name)) + 2 + (0 if known else len(json.dumps(directory)) + 6)
        if size > MAX_LOADED_BYTES or (not known and len(loaded) >= MAX_LOADED_DIRECTORIES):
            break
        loaded.setdefault(directory, []).append(name)
    return loaded


MAPPED_BYTES = 256 * 1024
"""Smallest mapping that forks inherit with its pages: a library's code, not a small module."""


def inherit_mapped_pages() -> None:
    """Have forks begin with those pages of mapped files that are in memory.

    The kernel leaves them out of a fork, which then has a fault for each few of them, unless a page
    of the mapping is this process's own (vma_needs_copy of mm/memory.c). So one is written to, with
    the byte that is there.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", "rb") as maps:
        lines = maps.read().splitlines()
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for line in lines:
                place, permissions, _, _, _, *path = line.split(None, 5)
                start, end = (int(number, 16) for number in place.split(b"-"))
                private = permissions in (b"r--p", b"r-xp") and path and path[0].startswith(b"/")
                if private and end - start >= MAPPED_BYTES:
                    memory.seek(start)
                    byte = memory.read(1)
                    memory.seek(start)
                    memory.write(byte)


def forget_lookups() -> None:
    """Empty the cache of attribute look-ups, which imports have filled.

    Each new look-up in a fork would throw an old one out and count one reference less to its name:
    a page of memory copied, often for that alone. It is a third of what a fork has for itself.
    """
    for name in ("_clear_internal_caches", "_clear_type_cache"):  # Python 3.13; before
        clear = getattr(sys, name, None)
        if clear is not None:
            clear()
            break


POOL_BYTES = 16 * 1024 if sys.version_info >= (3, 10) else 4096
"""Memory from which Python's allocator takes the objects of one size (pymalloc), with a header."""

POOL_HEADER_BYTES = 48

LARGEST_POOLED = 512
"""Larger objects come from the C library's heap."""

MAX_GAP_BYTES = 8 * 1024 * 1024
"""Largest sum of the gaps of one size, which many imports leave; else it is another allocator."""


def fill_gaps() -> Sequence[object]:
    """Make objects in all places that freed ones have left, so that new ones lie together.

    The allocator takes such places first. They are all over the memory that forks share, and each
    page of it that a fork writes to is copied. Return the objects, to be kept.
    """
    fillers: list[object] = []
    empty_bytes = sys.getsizeof(b"")
    for size in range(48, LARGEST_POOLED + 1, 16):  # numbers are smaller, and made here as well
        whole_pool = (POOL_BYTES - POOL_HEADER_BYTES) // size
        found: list[object] = []
        in_a_row = last = 0
        while in_a_row < whole_pool:  # a whole pool in order of address was empty: no gap is left
            filler = bytes(size - empty_bytes)
            found.append(filler)
            in_a_row = in_a_row + 1 if id(filler) == last + size else 1
            last = id(filler)
            if len(found) * size > MAX_GAP_BYTES:
                return ()
        fillers += found[:-whole_pool]
    return fillers
