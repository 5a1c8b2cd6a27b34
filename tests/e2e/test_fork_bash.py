"""Live forks of real Bash sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from live_forks import SEES, needs_scopes
from live_forks import printed as printed_in
from nsm.wire.errors import ForkRefusedError

if TYPE_CHECKING:
    from nsm import Client

pytestmark = needs_scopes


def printed(client: Client, session: str, code: str) -> str:
    return printed_in(client, session, code, "bash")


STATE = """
x=5; list=(1 "2 3"); declare -A map=([k]=v); export MINE=yes
f() { echo "f $1 $x"; }
alias greet='echo hi'
set -o pipefail; shopt -s nullglob
trap 'echo handled' USR1
mkdir -p deep; cd deep
printf 'one\\ntwo\\n' >/workspace/note; exec 7</workspace/note; read -r first <&7
"""

USE = """
f a; echo "${list[1]} ${map[k]} $PWD $first"; printenv MINE; read -r line <&7; echo "$line"
[[ -o pipefail ]] && shopt -q nullglob && echo options
kill -USR1 $$; [[ $$ == "$BASHPID" ]] && echo same
alias greet
"""

USED = """f a 5
2 3 v /workspace/deep one
yes
two
options
handled
same
alias greet='echo hi'
"""


def test_a_fork_goes_on_where_the_original_is(client: Client) -> None:
    printed(client, "forked", STATE)
    report = client.fork("forked", "its-fork")
    assert [fork.name for fork in report.forks] == ["its-fork"]
    assert (
        printed(
            client,
            "its-fork",
            "x=6; echo $x; cd /; rm -r /workspace/deep; mkdir /workspace/deep; cd /workspace/deep",
        )
        == "6\n"
    )
    assert printed(client, "forked", USE) == USED
    (again,) = client.fork("its-fork").forks
    assert printed(client, again.name, USE) == USED.replace("f a 5", "f a 6")
    # A shell that ends is replaced, as any.
    assert client.run("exit 7", env="bash", session="its-fork").exit_code == 7
    assert printed(client, "its-fork", "echo ${x-none}") == "none\n"


def test_a_fork_outlives_failing_code(client: Client) -> None:
    printed(client, "safe", "x=1; trap 'echo wrong' ERR; trap - ERR")
    client.fork("safe", "fork")
    for code in ("echo ${missing:?}", "set -e; false", "set -u; echo $missing", "echo $("):
        assert client.run(code, env="bash", session="fork").exit_code, code
        assert printed(client, "fork", "set +eu; echo $x") == "1\n"
    late = client.run("sleep 60", env="bash", session="fork", timeout_s=0.3)
    assert late.timed_out
    late = client.run("while :; do :; done", env="bash", session="fork", timeout_s=0.3)
    assert late.timed_out
    assert not late.interpreter_restarted
    assert printed(client, "fork", "echo $x") == "1\n"


@pytest.mark.slow
def test_random_numbers_differ_and_a_trap_of_children_is_kept(client: Client) -> None:
    printed(client, "first", "RANDOM=7; trap 'x=$((x + 1))' CHLD")
    names = [fork.name for fork in client.fork("first", count=2).forks]
    drawn = {printed(client, name, "echo $RANDOM $RANDOM $RANDOM") for name in ("first", *names)}
    assert len(drawn) == 3
    for name in ("first", *names):
        assert printed(client, name, "x=0; (exit 3); echo $? $x") == "3 1\n"
        own = "RANDOM=7; a=$RANDOM; RANDOM=7; [[ $a == $RANDOM ]] && echo seeded"
        assert printed(client, name, own) == "seeded\n"


def test_a_refused_fork_leaves_the_shell_as_it_was(client: Client) -> None:
    printed(client, "busy", "sleep 99 & x=1")
    with pytest.raises(ForkRefusedError, match="sleep"):
        client.fork("busy", "never")
    assert printed(client, "busy", "kill %1; wait; echo $x") == "1\n"
    assert [fork.name for fork in client.fork("busy", "now").forks] == ["now"]
    printed(client, "busy", "exec 9> >(cat >/dev/null)")
    with pytest.raises(ForkRefusedError, match="cat"):
        client.fork("busy", "never")
    printed(client, "busy", "exec 9>&-; while pgrep cat; do :; done; mkfifo p; exec 8<>p")
    assert any("/workspace/p" in each for each in client.fork("busy", "piped").closed)
    assert printed(client, "piped", "readlink /proc/$$/fd/8") == "/dev/null\n"
    assert sorted(str(row.name) for row in client.sessions()) == ["busy", "now", "piped"]


NOTHING = """[] ([0, 0, 0, 0, 0, 2, 1], ['0', '0', '0', '0'])
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	0000000000000000
CapBnd:	0000000000000000
CapAmb:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
"""


def test_original_and_forks_cannot_reach_each_other(client: Client) -> None:
    look = (
        f"cat >/tmp/look <<'END'\n{SEES}\nprint(reached(), privileges())\nEND\npython3 /tmp/look\n"
        "for p in {2..400}; do (( p == $$ || p == BASHPID )) || ! kill -0 $p || echo $p; done "
        "2>/dev/null; grep -E '^(Cap...|Seccomp|NoNewPrivs):' /proc/$$/status"
    )
    printed(client, "above", "x=1")
    forks = [fork.name for fork in client.fork("above", count=2).forks]
    (below,) = client.fork(forks[0]).forks
    for name in ("above", *forks, below.name):
        assert printed(client, name, look) == NOTHING, name
    # Nor can a shell that starts only later.
    client.run("exit", env="bash", session="above")
    assert printed(client, "above", look) == NOTHING
