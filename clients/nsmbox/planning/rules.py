"""Rules of a box, told in it: for an agent as JSON and as a short text, and by `git`. Pure.

An agent that does not know what it may do tries again and again, or looks for a way around. Names
of files may be anybody's, so they are spelled out where they could be read as something else.

git writes its configuration to a second file and renames it; over a mount that fails as "Device or
resource busy", which says nothing to anybody. So commands that may write it go by a script, which
puts the reason in the place of these lines. All others become git itself.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence

from nsmbox.consent.readable import legible
from nsmbox.consent.summary import Outline, outline
from nsmbox.model.plan import (
    MODES,
    POLICY_FILE,
    RULES_FILE,
    RUN_DIRECTORY,
    Mount,
    Plan,
)
from nsmbox.profiles import Profile
from nsmbox.protection.secrets import within

MAX_NAMED = 12
"""Paths of a kind that the text names; the JSON has all of them."""

_NETWORKS = {mode: word for word, mode in MODES.items()}


def mounts(plan: Plan, profile: Profile, home: str) -> tuple[Mount, ...]:
    """List the mounts of the files that tell the agent its rules; they come after all others."""
    told = text(plan, home)
    files = {POLICY_FILE: policy(plan, home), RULES_FILE: told}
    for each in profile.rules:
        files[each.file] = each.text.replace("{text}", told).replace(
            "{json}", json.dumps(told, ensure_ascii=False)
        )
    return tuple(
        Mount(
            kind="ro-file",
            target=target,
            data=os.fsencode(data),
            mode=0o444,
            why="rules of the box, for the agent",
        )
        for target, data in files.items()
    )


def policy(plan: Plan, home: str) -> str:
    """The rules as JSON (docs/reference/policy.md)."""
    found = outline(plan)
    stand_ins = plan.cannot_make
    rules = {
        "version": 1,
        "kind": "box",
        "profile": plan.profile,
        "directory": plan.directory,
        "home": {"path": home, "kept": False},
        "writable": [item.target for item in found.change],
        "protected": [t.target for t in found.protected if t.target not in stand_ins],
        "cannot_make": stand_ins,
        "read_only": [item.target for item in found.read if not within(item.target, RUN_DIRECTORY)],
        "hidden": [item.target for item in found.hidden if item.target not in stand_ins],
        "network": {"mode": _NETWORKS[plan.network.mode], "allow": list(plan.network.allow)},
        "variables": [variable.name for variable in plan.variables],
        "programs": list(plan.programs),
        **({"secrets": list(plan.secrets)} if plan.secrets else {}),
    }
    return json.dumps(rules, indent=2) + "\n"


def text(plan: Plan, home: str) -> str:
    """The rules in a few lines."""
    found = outline(plan)
    change = [item.target for item in found.change]
    worktrees = f"{plan.directory}.worktrees"
    shown = [m.target for m in plan.mounts if m.kind == "ro-bind" and m.why in _SHOWN]
    lines = [
        "# You are in a box",
        "",
        "nsm runs you in a jail on the user's computer. These rules are enforced from outside: do",
        f"not look for a way around them. `{POLICY_FILE}` has them as JSON. If one is in your",
        "way, say so, and tell the user what to run outside of the box.",
        "",
        f"- You can change: {_listed(change)}.",
        *_protected(found, plan.cannot_make),
        *_not_made(plan),
        *([f"- You can also read: {_listed(shown)}."] if shown else []),
        f"- {legible(home)} is otherwise empty, in memory, and vanishes at the end, as `/tmp` does",
        "  and directories next to the project: put what is to stay into the project.",
        *([f"- Make git's worktrees in `{legible(worktrees)}`."] if worktrees in change else []),
        *(["- git does not work: the box does not show the repository."] * plan.git_unusable),
        *_hidden(found, plan.cannot_make),
        f"- Network: {_network(plan)}.",
        "- There is no ssh, gpg, sudo or docker, and no key or login of the user's.",
    ]
    if plan.network.mode == "allow":
        lines += [
            "- If the proxy refuses all connections, nsm has ended outside: then the user has to",
            "  end this box and start it again.",
        ]
    if plan.programs:
        programs = _listed(plan.programs)
        lines.append(f"- The tool `execute` starts programs on the user's computer: {programs}.")
    if plan.secrets:
        lines += [
            f"- Secrets: {_listed(plan.secrets)}. Variables have placeholders. nsm puts the values",
            "  into headers of HTTPS requests to their hosts, and nowhere else.",
        ]
    return "".join(f"{line}\n" for line in lines)


_SHOWN = ("added", "shown on request")


def _not_made(plan: Plan) -> list[str]:
    names = [os.path.relpath(path, plan.directory) for path in plan.cannot_make]
    if not names:
        return []
    return [
        "- You cannot create the following, for the same reason. What you see in their places is",
        f"  nsm's, and vanishes at the end: {_listed(names)}. The user can allow them:",
        "  `nsm box --unprotect NAME,...`.",
    ]


def _protected(found: Outline, stand_ins: Sequence[str]) -> list[str]:
    protected = [item.target for item in found.protected if item.target not in stand_ins]
    if not protected:
        return []
    lines = [
        "- Inside of these you cannot change the following, mostly because the user's computer",
        f"  would run it: {_listed(protected)}.",
    ]
    if any(path.endswith("/config") for path in protected):
        lines += [
            "- git commits, branches and pushes here, but cannot write its configuration: `git",
            "  config`, `git remote add` and `git push -u` fail, and a new branch tracks none. Use",
            "  `git -c NAME=VALUE`, `git push REMOTE BRANCH`, `git fetch URL`.",
        ]
    return lines


def _hidden(found: Outline, stand_ins: Sequence[str]) -> list[str]:
    names = [
        item.target
        for item in found.hidden
        if item.target not in stand_ins and not item.target.startswith(("/usr/", "/bin/"))
    ]
    return [f"- Hidden from you, and empty here: {_listed(names)}."] if names else []


def _network(plan: Plan) -> str:
    match plan.network.mode:
        case "host":
            return "all that this computer reaches"
        case "none":
            return "none"
        case "allow":
            hosts = _listed(plan.network.allow) or "none"
            return f"through the proxy that HTTP_PROXY and its like name, only {hosts}"


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = [f"and {len(known) - MAX_NAMED} more"] if len(known) > MAX_NAMED else []
    return ", ".join([*(f"`{legible(name)}`" for name in known[:MAX_NAMED]), *more])


_SCRIPT = """\
#!/bin/sh
# Made by nsm. Says why git cannot write its configuration in this box.
git={git}
skip=
writes=
for word; do
    if [ "$skip" ]; then
        skip=
        continue
    fi
    case $word in
        -C | -c | --git-dir | --work-tree | --namespace | --config-env) skip=1 ;;
        -*) ;;
        remote | config | switch | checkout | branch | sparse-checkout | lfs)
            writes=1
            break
            ;;
        submodule | push)
            case " $* " in
                *" -u "* | *" --set-upstream "* | *" init "* | *" add "*) writes=1 ;;
            esac
            break
            ;;
        *) break ;;
    esac
done
[ "$writes" ] || exec "$git" "$@"
why() {{
    told=
    while IFS= read -r line || [ "$line" ]; do
        case $line in
            */config:\\ *)
                [ "$told" ] || printf '%s\\n' {why}
                told=1
                ;;
            *) printf '%s\\n' "$line" ;;
        esac
    done
}}
exec 3>&1
code=$({{ {{ "$git" "$@" 2>&1 >&3 3>&- 4>&-; echo $? >&4; }} | why >&2 3>&-; }} 4>&1)
exit "${{code:-1}}"
"""

_WHY = (
    "nsm box: git cannot change its configuration in this box, since git outside would run what it "
    f"names ({RULES_FILE}). Ask the user to do that part outside, or for --unprotect .git/config."
)


def script(git: str) -> bytes:
    """The content of the program."""
    return _SCRIPT.format(git=shlex.quote(git), why=shlex.quote(_WHY)).encode()
