"""The user's indexes, and how they are reached: values."""

from __future__ import annotations

from collections.abc import Mapping

from nsm.dataclass import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One index.

    Attributes:
        name: name for messages, from the configuration or made of the host.
        url: its URL, without credentials: ``http:``, ``https:`` or ``file:``.
        login: user and password; None if it needs none. Those of npm are in its settings.
        scope: of npm: the scope that it serves (``@company``); empty for all others.
    """

    name: str
    url: str = field(repr=False)  # some have a token in their path
    login: tuple[str, str] | None = field(default=None, repr=False)
    scope: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAccess:
    """Settings for connections to all indexes of one kind.

    Attributes:
        certificates: file of certificates to trust in place of the usual ones, or directories.
        more_certificates: file of certificates to trust as well.
        client_certificate: file with the user's own certificate and its key.
        insecure_hosts: ``HOST`` or ``HOST:PORT`` whose certificate is not checked.
        proxies: the user's own proxy for ``http`` and ``https``; may hold a password.
        no_proxy: hosts that are reached without it, as in ``NO_PROXY``.
        timeout_s: None for the usual one.
        retries: None for the usual number.
    """

    certificates: str | None = None
    more_certificates: str | None = None
    client_certificate: str | None = None
    insecure_hosts: tuple[str, ...] = ()
    proxies: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    no_proxy: tuple[str, ...] = ()
    timeout_s: float | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexes:
    """All indexes of the user.

    Attributes:
        python: the first one is the default.
        npm: the one without a scope is the default.
        conda: places of the channels of conda that a build asks, the first one preferred.
        link_pages: pages with links to Python packages (`--find-links URL`).
        find_links: absolute local directories with wheels, or pages with links.
        directories: all local directories that a build has to see: those of `find_links` and of
            ``file:`` indexes.
        constraints: absolute paths of files with constraints for every resolution.
        index_strategy: uv's setting of that name; empty if there is none.
        npm_settings: npm's settings that concern registries, as its variables; with credentials.
        logins: users and passwords by host, from netrc.
        python_problems: sentences about configuration of pip and uv that is invalid or cannot be
            read. A build must not begin then: it might take packages from elsewhere than the user
            has chosen.
        npm_problems: the same for npm.
        conda_problems: the same for channels of conda.
        notes: sentences about what is left out and does no harm.
    """

    python: tuple[Index, ...] = ()
    npm: tuple[Index, ...] = ()
    conda: tuple[Index, ...] = ()
    link_pages: tuple[Index, ...] = ()
    find_links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    index_strategy: str = ""
    python_access: IndexAccess = IndexAccess()
    npm_access: IndexAccess = IndexAccess()
    npm_settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    logins: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]], repr=False
    )
    python_problems: tuple[str, ...] = ()
    npm_problems: tuple[str, ...] = ()
    conda_problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
