"""Git of a working directory: its repository, the author of commits, what its configuration runs.

Everything in the working directory may have been written by a box. So a `.git` file that names a
directory elsewhere is believed only where that directory says, too, that it belongs to this one:
the box that wrote the file could not write there. No program that the working directory names is
run, and its configuration is not read for values that leave it. A configuration that a box has left
is given to git on standard input, in a jail that is thrown away, where it follows no include.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import nsm.git
from nsm.dataclass import dataclass
from nsm.git import git_file, is_repository
from nsmbox.model.plan import Mount
from nsmbox.protection import secrets
from nsmbox.protection.secrets import Known, printable, within

_COMMANDS = (
    r"core\.(fsmonitor|sshcommand|editor|pager|askpass|gitproxy|alternaterefscommand)"
    r"|sequence\.editor|interactive\.difffilter"
    r"|diff\.(external|.*\.(command|textconv))|filter\..*\.(clean|smudge|process)|merge\..*\.driver"
    r"|(merge|diff|gui|browser|man)(tool)?\..*\.(cmd|path)|credential\.(.*\.)?helper"
    r"|gpg\.(.*\.)?(program|defaultkeycommand)|pager\..*|hook\..*\.command"
    r"|remote\..*\.(uploadpack|receivepack)|submodule\..*\.update|trailer\..*\.(command|cmd)"
    r"|tar\..*\.command|imap\.tunnel|sendemail\..*(cmd|server)|lfs\.(customtransfer|extension)\..*"
    r"|alias\..*|uploadpack\.packobjectshook|gc\.recentobjectshook|svn\.authorsprog|instaweb\.httpd"
    r"|init\.templatedir"
)
"""Entries of a configuration that name programs (git-config(1)), or a directory with hooks for the
next repository."""

_LEADS = (
    r"core\.(hookspath|worktree)|include\.path|includeif\..*\.path|remote\..*\.(vcs|proxy)"
    r"|protocol\.(.*\.)?allow|url\..*\.(push)?insteadof"
    r"|http\.(.*\.)?(proxy|sslverify|sslcainfo|sslcapath|curloptresolve|cookiefile)"
)
"""Entries that lead git to other configurations, hooks, helpers or hosts, or that have it send the
user's logins and files, or write, elsewhere."""

_REMOTES = r"(remote|submodule)\..*\.(push)?url|branch\..*\.(push)?remote|remote\.pushdefault"
"""Entries that name repositories. Few of these run something: addresses that name a helper."""

_SWITCHES = r"core\.fsmonitor|pager\..*"
_HARMLESS = ("true", "false", "yes", "no", "on", "off", "1", "0", "")

_PATH = r"[\w.+-]*/[\w.+/-]+"
"""A path that can be nothing else, such as a pattern."""

_DEPTH = 3
"""Shells within a command of a shell: a word of `sh -c` is one."""

WORDS = tuple(
    b"alias askpass clean cmd command driver editor external filter fsmonitor gitproxy helper "
    b"hook httpd include lfs pack pager process prog server smudge ssh template textconv tool "
    b"trailer tunnel update".split()
)
"""Each name of an entry that runs something has one of these in it, in lower case, and so has a
file that includes others."""


def runs(key: str, value: str) -> bool:
    """Return whether an entry has git run a program, or leads it elsewhere."""
    if re.fullmatch(_REMOTES, key, re.DOTALL):
        return "::" in value  # a helper's, such as ext::
    return names_program(key, value) or re.fullmatch(_LEADS, key, re.DOTALL) is not None


def names_program(key: str, value: str) -> bool:
    """Return whether an entry names a program that git runs."""
    if not re.fullmatch(_COMMANDS, key, re.DOTALL):
        return False
    if key.startswith("alias."):
        return value.startswith("!")
    return not (re.fullmatch(_SWITCHES, key, re.DOTALL) and value.lower() in _HARMLESS)


def paths_in(value: str, directory: str) -> tuple[str, ...]:
    """Files and directories below a directory that a command names, and its program if that is not
    there.
    """
    found: dict[str, None] = {}
    for place, word in enumerate(_words(value.removeprefix("!"))):
        if place == 0 and "/" not in word:
            continue  # found by PATH
        # After a variable or a command, it may be a path from some directory on.
        bare = re.sub(r"^\$\{?\w+\}?", "", word)
        for text in (word, bare, bare.lstrip("/"), word.partition("=")[2]):
            path = os.path.normpath(os.path.join(directory, os.path.expanduser(text)))
            if not path.startswith(f"{directory.rstrip('/')}/"):
                continue
            is_program = place == 0 and text == word and re.fullmatch(_PATH, text) is not None
            if os.path.lexists(path) or is_program:
                found[path] = None
    return tuple(found)


def _words(value: str, depth: int = _DEPTH) -> Iterator[str]:
    lexer = shlex.shlex(value, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError:  # a quotation that does not end
        words = re.split(r"[\s'\"]+", value)
    for word in words:
        yield word
        if depth and re.search(r"[\s;&|()<>`]", word):
            yield from _words(word.replace("`", " "), depth - 1)


MAX_CONFIG_BYTES = 1024 * 1024

MAX_ASKED = 64
"""Largest number of different configurations that git is asked about."""


@dataclass(slots=True, kw_only=True)
class GitReader:
    """Asks git about configurations, about each text once.

    Attributes:
        bwrap: makes the jail; empty where there is none.
        git: None where there is none.
    """

    bwrap: str
    git: str | None
    _answers: dict[bytes, tuple[str, ...] | str]

    @classmethod
    def of(cls, bwrap: str, git: str | None) -> GitReader:
        """Make one that has not been asked yet."""
        return cls(bwrap=bwrap, git=git, _answers={})

    def running(self, data: bytes) -> tuple[str, ...] | str:
        """Return the entries by which git runs programs or reads other files, as `key = value`; a
        str says why nobody knows."""
        if data not in self._answers:
            if len(self._answers) >= MAX_ASKED:
                return f"git was asked about {MAX_ASKED} others, and not about this one"
            self._answers[data] = self._ask(data)
        return self._answers[data]

    def _ask(self, data: bytes) -> tuple[str, ...] | str:
        from subprocess import TimeoutExpired  # noqa: PLC0415 - where a box has left such a text

        if self.git is None or not self.bwrap:
            return "there is no git here to read it"
        jail = (
            *(self.bwrap, "--unshare-all", "--unshare-user", "--disable-userns"),
            *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--chdir", "/"),
        )
        try:
            done = nsm.git.run(
                self.git,
                ["config", "--file", "-", "--no-includes", "-z", "--list"],
                {"HOME": "/", "GIT_CONFIG_NOSYSTEM": "1"},
                timeout_s=WAIT_S,
                before=[*jail, "--"],
                data=data,
            )
        except (OSError, ValueError, TimeoutExpired) as error:
            return f"git could not be asked: {error}"
        if done.returncode:
            return f"git cannot read it: {nsm.git.reason(done)}"
        fields = (entry.partition("\n") for entry in os.fsdecode(done.stdout).split("\0") if entry)
        return tuple(f"{key} = {value}" for key, _, value in fields if runs(key, value))


WAIT_S = 5.0
"""Time limit for git to read its configuration: a FIFO that it includes would block it for ever."""

TOOK_TOO_LONG = "git took longer than "

_NOTHING: Mapping[str, bool] = MappingProxyType({})

NAME, EMAIL = "Box User", "box@localhost"
"""Author of commits, for a user who has told git no name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Author of commits.

    Attributes:
        known: both are what the user has told git.
        problem: why git's configuration could not be read, in git's words; empty if it could.
        hooks: `core.hooksPath` of the user's own configuration; empty where it has none.
        programs: its entries that name programs by more than a word, which PATH finds: keys and
            values.
    """

    name: str = NAME
    email: str = EMAIL
    known: bool = False
    problem: str = ""
    hooks: str = ""
    programs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GitFacts:
    """The repository of a working directory.

    Attributes:
        git_directory: real path of the working directory's repository; None if it has none, or none
            that can be trusted.
        common: directory that it shares with other worktrees; else the same.
        shown: the part of them outside of the working directory: at most `common`, which contains
            the other.
        unusable: a sentence about why git does not work in the box; empty if it does.
        notes: sentences for people, that one among them.
    """

    identity: Identity = Identity()
    git_directory: str | None = None
    common: str | None = None
    shown: tuple[str, ...] = ()
    unusable: str = ""
    notes: tuple[str, ...] = ()


def look(
    directory: str,
    known: Known,
    git: str | None,
    variables: Mapping[str, str],
    added: Mapping[str, bool] = _NOTHING,
) -> GitFacts:
    """Find the repository of a working directory, and who the user is.

    Args:
        directory: absolute, all links followed.
        git: a program outside of the working directory (`paths.which`); None where there is none.
        added: directories that the box shows besides, all links followed; whether it can change
            them.
    """
    notes: list[str] = []
    found = _repository(directory, known, git, variables, added, notes)
    own, common = found or (None, None)
    unusable = " ".join(notes)
    who = identity(git, own if own and common and _is_plain(own, common) else None, variables)
    if git is None:
        notes.append("git is not installed: commits in the box are of a made-up user.")
    elif who.problem:
        notes.append(f"git's configuration cannot be read: {who.problem}.")
    elif not who.known:
        notes.append(
            "git knows no user.name or user.email: where the repository has none either, commits "
            "in the box are of a made-up user. `git config --global` sets them."
        )
    return GitFacts(
        identity=who,
        git_directory=own,
        common=common,
        shown=() if common is None or _is_in(common, (directory, *added)) else (common,),
        unusable=unusable,
        notes=tuple(notes),
    )


def mounts(facts: GitFacts) -> tuple[Mount, ...]:
    """List the mounts that a linked worktree or a submodule needs for git to work; after the
    working directory."""
    return tuple(
        Mount(kind="bind", target=path, source=path, linkless=True, why="the repository")
        for path in facts.shown
    )


def configuration(identity: Identity) -> bytes:
    """The whole of the box's `.gitconfig`: nothing else of the host's, no credential helper."""
    who = {"user.name": identity.name, "user.email": identity.email}
    return os.fsencode(nsm.git.jail_settings(who))


def identity(git: str | None, git_directory: str | None, variables: Mapping[str, str]) -> Identity:
    """Find the author of commits, by the user's and the system's configuration.

    The repository's own configuration is left out: git in the box reads that itself.

    Args:
        git_directory: makes `includeIf.gitdir` of the user's configuration apply.
    """
    if git is None:
        return Identity()
    values: dict[str, str] = {}
    programs: list[tuple[str, str]] = []
    problem = ""
    for scope in ("--global", "--system"):
        place = [f"--git-dir={git_directory}"] if git_directory else []
        # Not `--list`, which fails where there is no such file.
        asked = ["config", scope, "--includes", "-z", "--get-regexp", "."]
        answer = run(git, [*place, *asked], variables)
        if isinstance(answer, str) and git_directory:
            answer = run(git, asked, variables)  # the repository may be what is broken
        if isinstance(answer, str):
            problem = problem or answer
            continue
        for entry in answer.decode(errors="surrogateescape").split("\0"):
            key, newline, value = entry.partition("\n")
            if newline and value and not (scope == "--system" and key in values):
                values[key] = value
                if re.search(r"[/\s]", value) and names_program(key, value):
                    programs.append((key, value))
    known = "user.name" in values and "user.email" in values
    return Identity(
        name=values.get("user.name", NAME),
        email=values.get("user.email", EMAIL),
        known=known,
        problem="" if known else problem,
        hooks=values.get("core.hookspath", ""),
        programs=tuple(programs),
    )


def run(
    git: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    wait_s: float | None = None,
) -> bytes | str:
    """Run `git config` and return its output, empty if it has no such key; a str says why it could
    not run.

    It runs in `/`: in the working directory it would look for a repository by itself.
    """
    from subprocess import TimeoutExpired  # noqa: PLC0415 - 6 ms, not needed where there is no git

    wait_s = WAIT_S if wait_s is None else wait_s
    try:
        done = nsm.git.run(git, arguments, variables, timeout_s=wait_s)
    except TimeoutExpired:
        return f"{TOOK_TOO_LONG}{wait_s:g} s to read it"
    except (OSError, ValueError) as error:
        return str(error)
    # 1: no such key, or (of --global, --system) no such file (git-config(1)).
    return done.stdout if done.returncode in (0, 1) else nsm.git.reason(done)


def _repository(
    directory: str,
    known: Known,
    git: str | None,
    variables: Mapping[str, str],
    added: Mapping[str, bool],
    notes: list[str],
) -> tuple[str, str] | None:
    """Real paths of the git directory and of the common one, where they are to be believed."""
    dot_git = os.path.join(directory, ".git")
    if not os.path.lexists(dot_git):
        if is_repository(directory):
            return directory, directory  # a bare one, or a git directory itself
        if above := repository_above(directory, known):
            notes.append(
                f"This directory is part of the repository {printable(above)}, whose .git is not "
                "shown: git in the box works where it is started there."
            )
        return None
    real = os.path.realpath(dot_git)
    for path in (dot_git, *(os.path.join(real, name) for name in ("HEAD", "objects", "refs"))):
        to = os.path.realpath(path)
        if os.path.islink(path) and not _is_in(to, (directory, *added)):
            notes.append(
                f"{printable(os.path.relpath(path, directory))} is a symbolic link to "
                f"{printable(to)}, which is not shown: git does not work in the box unless `--add` "
                "shows that directory."
            )
            break
    if not _is_in(real, (directory, *(path for path, writable in added.items() if writable))):
        return None  # the box cannot change it
    if os.path.isdir(real):
        return real, real
    named = git_file(real)
    if named is None:
        return None
    own = os.path.realpath(os.path.join(directory, named))
    common = nsm.git.common_directory(own)
    reason = _why_not_its_own(directory, own, common, known, git, variables)
    if reason is not None:
        notes.append(
            f"The repository that .git names, {printable(own)}, is not shown: {reason}. git does "
            "not work in the box."
        )
        return None
    return own, common


def _is_in(path: str, directories: Iterable[str]) -> bool:
    return any(within(path, each) for each in directories)


def _why_not_its_own(
    directory: str,
    own: str,
    common: str,
    known: Known,
    git: str | None,
    variables: Mapping[str, str],
) -> str | None:
    """Explain why a git directory that a `.git` file names is kept from the box; None if not."""
    for path in (own, common):
        if not is_repository(path, whole=path == common):
            return f"{printable(path)} is not a git directory"
        if within(path, directory):
            continue
        if within(directory, path):
            return "the working directory lies in it"
        if reason := secrets.why_refused(known, path):
            return f"{printable(path)} {reason}"
        if os.stat(path).st_uid != os.geteuid():
            return f"{printable(path)} belongs to somebody else"
    if within(own, directory):
        if within(common, directory):
            return None
        return "its common directory lies outside of the working directory"
    if own != common:
        return nsm.git.why_no_worktree(directory, own, common)
    if git is None:
        return "git is not installed"
    said = run(
        git,
        ["config", "--file", os.path.join(own, "config"), "-z", "--get", "core.worktree"],
        variables,
    )
    worktree = "" if isinstance(said, str) else os.fsdecode(said.rstrip(b"\0"))
    if not worktree or nsm.git.resolved(own, worktree) != directory:
        return "it does not say that it is that of this directory"
    return None


def _is_plain(own: str, common: str) -> bool:
    """Return whether git can read the author there without waiting: a FIFO would block it."""
    names = (os.path.join(own, "HEAD"), os.path.join(own, "commondir"))
    for path in (*names, os.path.join(common, "config")):
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                return False
        except OSError:
            continue
    return is_repository(common)


def repository_above(directory: str, known: Known) -> str | None:
    """The next directory above that has a `.git`, short of home directories."""
    above = os.path.dirname(directory)
    while above != "/" and above not in known.homes:
        if os.path.lexists(os.path.join(above, ".git")):
            return above
        above = os.path.dirname(above)
    return None
