"""bwrap's words, and what a person is told to do about them."""

from __future__ import annotations

import pytest

from nsm.jail.failure import SEE_DOCTOR, HostFacts, explain

FREE = HostFacts(namespace_limits={"user": 96365, "mnt": 96365})

NO_PERMISSION = (
    "bwrap: No permissions to create new namespace, likely because the kernel does not allow "
    "non-privileged user namespaces."
)
NO_SPACE = (
    "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces "
    "exceeded (ENOSPC)"
)
NO_LOOPBACK = "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted"
NO_UID_MAP = "bwrap: setting up uid map: Permission denied"


@pytest.mark.parametrize(
    ("text", "facts", "why", "fix"),
    [
        (
            NO_PERMISSION,
            HostFacts(userns_clone=0),
            "kernel.unprivileged_userns_clone is 0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            NO_SPACE,
            HostFacts(namespace_limits={"user": 0, "mnt": 100}),
            "user.max_user_namespaces is 0",
            "sysctl -w user.max_user_namespaces=15000",
        ),
        (NO_SPACE, FREE, "user 96365, mnt 96365", "nsm kill"),
        *(
            (
                text,
                HostFacts(apparmor_restricts=1),
                "kernel.apparmor_restrict_unprivileged_userns is 1",
                "/opt/bin/bwrap flags=(unconfined) { userns, }",
            )
            for text in (NO_LOOPBACK, NO_UID_MAP, NO_PERMISSION)
        ),
        (NO_PERMISSION, HostFacts(container=True), "This container", "seccomp=unconfined"),
        (NO_PERMISSION, FREE, "none of the usual settings", "dmesg"),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            FREE,
            "Parts of /proc are covered",
            "systempaths=unconfined",
        ),
        (
            "bwrap: Can't find source path /home/u/p: Permission denied",
            FREE,
            "to show /home/u/p, and could not: Permission denied",
            "ls -ld /home/u/p",
        ),
        (
            "bwrap: execvp /opt/py/bin/python3: No such file or directory",
            FREE,
            "no working /opt/py/bin/python3",
            "nsm shutdown",
        ),
        ("bwrap: Unknown option --disable-userns", FREE, "--disable-userns", "0.8 or newer"),
        (
            "bwrap: The --size option is not permitted in setuid mode",
            FREE,
            "installed setuid root",
            "chmod u-s /opt/bin/bwrap",
        ),
        (
            "bwrap: Can't fork for pid 1: Resource temporarily unavailable",
            FREE,
            "has run out of something",
            "ulimit -u",
        ),
        ("Traceback ...\nSyntaxError: invalid syntax", FREE, "SyntaxError", SEE_DOCTOR),
        ("", FREE, "nothing was said", SEE_DOCTOR),
    ],
)
def test_cause_and_remedy(text: str, facts: HostFacts, why: str, fix: str) -> None:
    error = explain(text, facts, "/opt/bin/bwrap")
    assert why in error.message
    assert fix in error.hint
    # The starter's own words are always there.
    assert text in error.message


def test_braces_in_a_path_are_only_text() -> None:
    error = explain("bwrap: Can't find source path /a/{0}{x}: No such file", FREE, "/bwrap")
    assert "/a/{0}{x}" in error.message
