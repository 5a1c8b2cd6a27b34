"""Probes of a session's own policy, which it reads and does not write."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.weaken import NOT_CLOSED, Weakness

_WRITABLE_POLICY = Weakness(
    template="""
mount = space["mount"]
def mount_as_it_is(source, target, kind, flags, *rest):
    if target != space["POLICY_PATH"] or not flags & space["MS_REMOUNT"]:
        mount(source, target, kind, flags, *rest)
space["mount"] = mount_as_it_is
"""
)

_NAMED_POLICY = Weakness(
    template="""
unlink = space["os"].unlink
space["os"].unlink = lambda path: path.endswith("/.policy") or unlink(path)
"""
)

_of_supervisor = partial(Probe, group="supervisor")

PROBES = (
    _of_supervisor(
        name="policy-file",
        source="docs/reference/policy.md: it is read-only, though code owns the file",
        code="""
path = "/run/nsm/policy.json"
def change():
    os.chmod(path, 0o644)
    open(path, "r+b").close()
    os.chmod(path, 0o444)
    return path
os.stat(path)  # without it, this would be no attack
verdict(attempt(change))
""",
        weakness=NOT_CLOSED,
        fork_weakness=_WRITABLE_POLICY,
    ),
    _of_supervisor(
        name="policy-file-by-another-name",
        source="mount(2), MS_BIND: a read-only mount says nothing of other ways to the same file",
        code="""
policy = os.stat("/run/nsm/policy.json")
same = []
for top in ("/run/nsm", "/tmp", "/workspace", "/dev/shm"):
    for name in os.listdir(top):
        found = attempt(os.stat, top + "/" + name)
        if found and os.path.samestat(found, policy):
            same.append(top + "/" + name)
def change(path):
    os.chmod(path, 0o644)
    os.chmod(path, 0o444)
    return path
verdict([path for path in same if attempt(change, path)])
""",
        weakness=NOT_CLOSED,
        fork_weakness=_NAMED_POLICY,
    ),
)
