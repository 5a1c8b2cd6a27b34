"""Request for a box, and the facts of the host: frozen values without I/O."""

from __future__ import annotations

from collections.abc import Mapping

from nsm.dataclass import dataclass, field
from nsmbox.host.added_directories import AddedDirectory, RequestedDirectory
from nsmbox.host.nix_host import HostNix
from nsmbox.host.nsm_itself import NsmPaths
from nsmbox.host.program_links import Links
from nsmbox.model.plan import BoxLimits, Network
from nsmbox.profiles import Profile
from nsmbox.protection.git_repository import GitFacts
from nsmbox.protection.guarded_files import Guarded
from nsmbox.protection.hidden_paths import HiddenPaths
from nsmbox.protection.secrets import Known


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRequest:
    """Request of a person, completed from the configuration and the profile.

    Attributes:
        command: as it was typed; empty for the profile's own program alone. Programs of a profile
            that has one are not in it, only their arguments.
        protect_paths: more of them, below the working directory.
        unprotected: those that it can change and make all the same, below the working directory.
        extra: names of variables that pass besides the profile's.
        show: paths below HOME that the profile `safe` shows, read-only.
        programs: names of the bridge's programs that it may start on the host.
        hide: paths and patterns that it does not show, as they were typed.
        start: where the command begins, in the working directory; empty for that itself. Relative
            paths of a program begin there.
        worktrees: show the directory beside the working directory that is for git's worktrees; None
            if a person said so before.
        persist: directories below HOME, relative to it, that boxes of one project keep.
    """

    profile: Profile
    command: tuple[str, ...] = ()
    network: Network = field(default_factory=Network)
    protect: bool = True
    protect_paths: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    add: tuple[RequestedDirectory, ...] = ()
    hide: tuple[str, ...] = ()
    set: Mapping[str, str] = field(default_factory=dict[str, str])
    start: str = ""
    worktrees: bool | None = None
    persist: tuple[str, ...] = ()
    limits: BoxLimits = field(default_factory=BoxLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPath:
    """A path of the host's that a box shows as it is.

    Attributes:
        link: target, if it is a symbolic link that stays one in the box; else empty.
        text: content of a file that the box has with more in it; else None.
    """

    path: str
    link: str = ""
    source: str = ""
    text: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A program that the box has.

    Attributes:
        path: on the host and in the box, all links followed.
        shown: host paths that it needs, besides the system's own.
        linked: `TOOLS_DIRECTORY` has a link to it, since no other directory on the box's PATH has
            it by this name.
        environment: path of the Python in a virtual environment: started by another path, it is not
            in that environment. Else empty.
    """

    name: str
    place: str
    path: str
    shown: tuple[str, ...] = ()
    linked: bool = True
    environment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The host as a box's plan needs it.

    Attributes:
        home: HOME, all links followed.
        home_link: HOME as the caller has it, where that is another path.
        directory: the working directory, all links followed.
        system: the parts of the host's system that every box shows, in the order of its mounts.
        state: files that the profile keeps in HOME: path in the box, and path on the host.
        persisted: directories of HOME that boxes of this project keep: path in the box, and path on
            the host.
        links: to the system's programs; None where they are found by other ways.
        command: the program that is to run, absolute, in the box; then its arguments.
        tools: programs outside of the system, or by other names, the command's with them.
        forbidden: programs of the system that no box runs, all links followed.
        shown: existing paths that the request or the profile shows, read-only.
        hidden: paths of these directories that it does not show.
        added_git: repositories of added directories in which the box can write.
        guarded: paths of all these directories that cannot be changed; empty unless requested.
        git_program: the path of git in the box, where a script may go before it; else empty.
        nix: the host's Nix; None where there is none.
    """

    home: str
    home_link: str = ""
    directory: str
    own: NsmPaths
    variables: Mapping[str, str]
    system: tuple[HostPath, ...]
    state: tuple[HostPath, ...] = ()
    persisted: tuple[HostPath, ...] = ()
    links: Links | None = None
    command: tuple[str, ...]
    tools: tuple[Tool, ...] = ()
    forbidden: tuple[str, ...] = ()
    shown: tuple[HostPath, ...] = ()
    secrets: Known = field(default_factory=Known)
    added: tuple[AddedDirectory, ...] = ()
    hidden: HiddenPaths = field(default_factory=HiddenPaths)
    git: GitFacts = field(default_factory=GitFacts)
    added_git: tuple[GitFacts, ...] = ()
    guarded: Guarded = field(default_factory=Guarded)
    shell: str = "/bin/sh"
    git_program: str = ""
    nix: HostNix | None = None
    notes: tuple[str, ...] = ()

    @property
    def places(self) -> dict[str, bool]:
        """Directories of the user that the box shows, and whether it can write there."""
        repositories = (path for git in (self.git, *self.added_git) for path in git.shown)
        return {
            **{each.path: each.writable for each in self.added},
            **dict.fromkeys(repositories, True),
            self.directory: True,
        }

    @property
    def writable(self) -> tuple[str, ...]:
        """Directories in which the box can write; the working directory first."""
        return (self.directory, *(each.path for each in self.added if each.writable))
