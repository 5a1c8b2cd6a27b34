"""`git` of a box whose repositories have a configuration that cannot be written. Pure.

git writes its configuration to a second file and renames it; over a mount that fails as "Device or
resource busy", which says nothing to anybody. So commands that may write it go by a script, which
puts the reason in the place of these lines. All others become git itself.
"""

from __future__ import annotations

import shlex

from nsmbox.model.plan import RULES_FILE

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
    """The content of the program.

    Args:
        git: the path in the box of git itself.
    """
    return _SCRIPT.format(git=shlex.quote(git), why=shlex.quote(_WHY)).encode()
