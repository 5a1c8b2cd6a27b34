"""Programs that git's configuration names; pure but for a look at which of them are there."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator

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

    Args:
        directory: where git runs it; absolute.
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
