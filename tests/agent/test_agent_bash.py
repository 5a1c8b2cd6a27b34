"""Bash code stops where a script stops, and what the agent's driver keeps for itself; the
conformance cases tell the rest."""

from __future__ import annotations

import re
import subprocess

import pytest

from agent_process import AgentProcess
from realjail import SYSTEM_PATH
from selection import one_in

STOPS: dict[str, str] = {
    "set -u": "set -u\necho before\necho $UNDEF\necho after",
    "set -u on the same line": "set -u; echo $UNDEF; echo after",
    "set -u in a function": "set -u\nf() { local a=1; echo $1; echo in; }\nf\necho after",
    "set -u in a loop": "set -u; for i in 1 2; do echo $i; echo $UNDEF; done\necho after",
    "set -u in a subshell": "set -u\n(echo $UNDEF; echo in)\necho $?",
    "set -u in a substitution": "set -u\nx=$(echo $UNDEF)\necho $?",
    "set -o nounset": "set -o nounset\necho $UNDEF\necho after",
    "an element": "set -u; declare -A m=([a]=1)\necho ${m[b]}\necho after",
    "an assertion": ': "${API_KEY:?must be set}"\necho deploying',
    "an assertion without a colon": "echo ${API_KEY?}\necho deploying",
    "an assertion of a parameter": "set --; f=${1:?usage: FILE}\necho $f",
    "set -eu": "set -eu\necho before\necho $UNDEF\necho after",
    "set -eu in a function": "set -eu; f() { echo $UNDEF; echo in; }; f\necho after",
    "set -eu in eval": "set -eu; eval 'echo $UNDEF\necho in'\necho after",
    "set -eu in a condition": "set -eu; if echo $UNDEF; then echo in; fi\necho after",
    "set -e and an assertion": "set -e\necho ${API_KEY:?must be set}\necho deploying",
    "set -e and a read-only variable": "set -e\nreadonly q=1\nq=2\necho after",
    "set -e": "set -e; echo a\nfalse\necho b",
    "set -o errexit": "set -o errexit; echo a\nfalse\necho b",
    "set -e in functions": "set -e\ng() { (exit 9); echo g; }; f() { g; echo f; }\nf\necho b",
    "set -e in a condition": "set -e\nf() { false; echo in; }\nif f; then echo yes; fi\necho b",
    "set -e in a list": "set -e; true && (exit 3); echo b",
    "set -e beside a list": "set -e; false && true; false || echo or; ! true; echo b",
    "set -e in a subshell": "set -e; (false; echo in); echo b",
    "set -e in a loop": "set -e; for i in 1 2 3; do echo $i; [[ $i != 2 ]]; done; echo b",
    "set -e in a pipeline": "set -e; false | true; echo a; true | (exit 4); echo b",
    "set -e in a substitution": "set -e\nx=$(exit 3)\necho b",
    "set -e in a file": "printf 'false\\necho in' > lib; set -e; . ./lib; echo b",
    "set -e in eval": "set -e; eval 'false\necho in'; echo b",
    "set -e at the end": "set -e; echo a; (exit 6)",
    "set -e that does not fire at the end": "set -e; echo a; ! true",
    "set -e and arithmetic": "set -e; (( 0 )); echo b",
    "set -e and no command": "set -e; no-such-command; echo b",
    "set -e switched off": "set -e; set +e; false; echo b",
    "an ERR trap": "trap 'echo trapped $? $LINENO' ERR; set -e\n\n(exit 9)\necho b",
    "an ERR trap that fails": "set -e; trap 'echo a; ! true; echo b' ERR; false; echo c",
    "an ERR trap and a function": "set -e; trap 'echo t' ERR\nf() { false; echo in; }\nf\necho b",
    "an ERR trap in functions": "set -Ee; trap 'echo $?' ERR\nf() { (exit 3); }\nf\necho b",
    "an ERR trap of a function": "set -e; f() { trap 'echo t' ERR; }\nf; false\necho b",
    "an ERR trap that does not fire": "set -u; trap 'echo t $?' ERR; false; echo b\n! true",
    "traps": "trap 'echo 1' ERR\ntrap 'echo 2' ERR\nset -e\n\nfalse | (exit 5)\necho b",
    "pipefail": "set -euo pipefail\nfalse | true\necho b",
    "a division by zero": "echo $((1/0)); echo same\necho next",
    "set -e and a division by zero": "set -e; echo $((1/0)); echo same\necho next",
    "a syntax error": "set -u\necho a\nif ; then",
    "an unclosed quote": "set -eu\necho a\necho 'b",
    "an unclosed substitution": "set -u\necho a\necho $(",
    "an unterminated here-document": "set -u\ncat <<EOF\ninside",
    "a comment": "set -u; echo a # b",
    "nothing": "set -u",
}


def test_a_sessions_code_stops_where_a_script_does(shared: AgentProcess) -> None:
    shared.bash("kept=1; kept() { echo kept; }; mkdir -p inner; cd inner")
    state = "kept; echo $kept $BASHPID $PWD $-; trap -p ERR EXIT; declare -p nsm_stop"
    (before,) = {shared.bash(state).stdout for _ in range(2)}
    (shared.workspace / "inner" / "bash").touch()
    for name, code in STOPS.items():
        (shared.workspace / "bash").write_text(code)
        script = subprocess.run(
            ["bash", "bash"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd=shared.workspace,
            text=True,
            check=False,
        )
        reply = shared.bash(code)
        expected = (script.stdout, script.returncode)
        assert (reply.stdout, reply.exit_code) == expected, (name, reply)
        unnumbered = re.sub(r"line \d+: ", "", script.stderr)
        shown = re.sub(r"/dev/fd/\d+: |line \d+: ", "", reply.stderr)
        assert shown == unnumbered, (name, reply)
        options = shared.bash("set +euE +o pipefail; trap - ERR")
        assert (options.exit_code, options.interpreter_restarted) == (0, False), (name, options)
        assert shared.bash(state).stdout == before, name
    shared.bash("cd ..")


def test_options_that_code_has_set_stay_and_stop_the_next(agent: AgentProcess) -> None:
    first = agent.bash("kept=$BASHPID; set -euo pipefail; echo a\n(exit 4); echo b")
    assert (first.stdout, first.exit_code, first.interpreter_restarted) == ("a\n", 4, False)
    assert first.frame["notes"] == ["`set -e` stopped the code at line 2; the session goes on"]
    second = agent.bash("f() { false | true\n echo in; }\necho a\nf")
    assert (second.stdout, second.exit_code, second.interpreter_restarted) == ("a\n", 1, False)
    assert second.frame["notes"] == ["`set -e` stopped the code at line 4; the session goes on"]
    third = agent.bash("echo a; echo $UNDEF\necho b")
    assert (third.stdout, third.exit_code) == ("a\n", 1)
    last = agent.bash("echo $- $SHELLOPTS; [[ $kept == $BASHPID ]] && echo same")
    assert re.fullmatch(r"ehiuB\w* .*\bpipefail\b.*\nsame\n", last.stdout)
    assert "notes" not in last.frame


def test_code_that_stops_keeps_its_traps_and_the_shell(agent: AgentProcess) -> None:
    traps = "kept=$BASHPID; trap 'echo cleaned' EXIT; trap 'echo failed $?' ERR\n"
    unset = agent.bash(traps + "set -eu; echo $UNDEF; echo not reached")
    assert (unset.stdout, unset.exit_code) == ("", 1)
    failed = agent.bash("(exit 4); echo not reached")
    assert (failed.stdout, failed.exit_code) == ("failed 4\n", 4)
    assert agent.bash("set +eu; (exit 5)").stdout == "failed 5\n"
    after = agent.bash(
        "[[ $kept == $BASHPID ]] && trap -p ERR EXIT DEBUG; echo $-; compgen -v nsm_"
    )
    assert (
        after.stdout
        == "trap -- 'echo failed $?' ERR\ntrap -- 'echo cleaned' EXIT\nhiBs\nfailed 1\n"
    )
    assert agent.bash("exit 6").stdout == "cleaned\n"


def test_descriptors_of_the_driver_that_code_closed_mean_a_fresh_shell(agent: AgentProcess) -> None:
    agent.bash("kept=1")
    reply = agent.bash("exec 230>&- 231>&- 232>file 233>&-; echo still fine")
    assert reply.stdout == "still fine\n"
    later = agent.bash("echo $kept fresh")
    assert later.stdout == "fresh\n"
    assert later.interpreter_restarted
    assert "descriptors that belong to nsm" in later.restart_reason


@pytest.mark.parametrize(
    "code",
    [
        "enable -n .",
        ".() { echo mine; }",
        ".() { :; }; builtin() { :; }",
        "enable -n . source builtin eval trap unset set exec kill exit return break",
    ],
)
def test_commands_of_the_driver_that_code_has_disabled_are_put_back(
    agent: AgentProcess, code: str
) -> None:
    assert agent.bash(f"kept=1; {code}").exit_code == 0
    reply = agent.bash("echo $kept")
    assert (reply.stdout.splitlines()[-1], reply.exit_code) == ("1", 0)
    assert "which nsm has put back" in reply.frame["notes"][0]
    reply = agent.bash("set -e; false; echo on")
    assert (reply.stdout, reply.exit_code, reply.interpreter_restarted) == ("", 1, False)
    assert agent.bash("echo $kept").stdout == "1\n"


@pytest.mark.parametrize("name", one_in(3, ["trap", "builtin", "unset", "kill", "eval"]))
def test_code_that_stops_does_so_without_a_command_that_is_disabled(
    agent: AgentProcess, name: str
) -> None:
    agent.bash(f"kept=1; enable -n {name}")
    for code in ("set -e; false", "set +e; echo ${nope:?gone}", "trap : ERR; set -e; false"):
        reply = agent.bash(code)
        assert (reply.exit_code, reply.interpreter_restarted) == (1, False)
    assert agent.bash("echo $kept").stdout == "1\n"


@pytest.mark.parametrize("name", one_in(3, ["trap", "unset", "set", "kill", "eval"]))
def test_functions_with_names_of_the_driver_s_commands_are_left_alone(
    agent: AgentProcess, name: str
) -> None:
    agent.bash("kept=1; set -e")
    agent.bash(f"{name}() {{ echo mine; }}")
    for code in ("false", "echo ${nope:?gone}", "trap : ERR EXIT; false"):
        reply = agent.bash(code)
        assert (reply.exit_code, reply.interpreter_restarted) == (1, False)
        assert reply.stdout == "mine\n" * code.startswith(f"{name} ")
    assert agent.bash("echo $kept").stdout == "1\n"
    assert agent.bash(f"{name}").stdout == "mine\n"


@pytest.mark.parametrize("names", ["$(compgen -b)", "enable ."])
def test_a_shell_that_can_run_no_code_any_more_is_replaced(agent: AgentProcess, names: str) -> None:
    agent.bash(f"kept=1; enable -n {names}")
    reply = agent.bash("echo $kept")
    assert (reply.exit_code, reply.interpreter_restarted) == (127, True)
    assert "code has disabled or replaced the command `.`" in reply.restart_reason
    assert agent.bash("echo kept=$kept").stdout == "kept=\n"


# One-shots: as a script.

SCRIPTS: dict[str, str] = {
    **STOPS,
    "an integer": 'declare -i iv; iv="1 +"; echo same line\necho next line',
    "a read-only variable": "readonly r=1; r=2; echo same line\necho next line",
    "a bad substitution": "echo ${a b}; echo same line\necho next line",
    "an indirect expansion": "x=${!nope}; echo same line\necho next line",
    "no match": "shopt -s failglob; echo /nope*\necho next line",
    "a subscript": "a[]=3; echo same line\necho next line",
    "an error in let": 'let "1 +"; echo $?',
    "an error in arithmetic": "(( 1/0 )); echo $?",
    "posix": "set -o posix; echo $((1/0))\necho next line",
    "exec of nothing": "exec /nope\necho next line",
    "an EXIT trap": "trap 'echo bye $?' EXIT\necho a\nexit 4",
    "an EXIT trap at the end": "trap 'echo bye' EXIT\necho a\nfalse",
    "an EXIT trap under set -e": "trap 'echo bye' EXIT\nset -e\nfalse\necho b",
    "an ERR trap": "trap 'echo at $LINENO' ERR\nf() { false; true; }\nf\nfalse\necho b",
    "a syntax error in the first line": "#!/bin/bash\\nif ; then",
    "a redirected first command": "while read x; do echo $x; done < bash > out; head -c5 out",
    "a syntax error": "echo a\nif ; then\necho b",
    "return": "return 5\necho after",
    "aliases": "alias hi='echo hello'\nhi",
    "its own end": "kill $$\necho after",
    "exit": "echo a; exit 7",
    "a here-document": "cat <<'EOF'\n$x\nEOF\necho after",
    "parameters": 'echo $# "$@" $0 $BASH_SOURCE $LINENO; [[ $0 == "${BASH_SOURCE[0]}" ]]',
    "functions": "type :; declare -F",
    "where it is": 'pwd; echo "$PWD ${OLDPWD-unset}"',
    "what is exported": "env | grep -v '^_=\\|^SHLVL=' | sort",
    "a trap for an interrupt": "trap 'echo got' INT; kill -INT $$; echo after",
    "quotes": """echo "it's" 'a "b"' $'c\\'d' \\\\ """,
}


@pytest.mark.parametrize("name", one_in(16, SCRIPTS))
def test_a_one_shot_does_what_a_script_does(agent: AgentProcess, name: str) -> None:
    code = SCRIPTS[name]
    (agent.workspace / "bash").write_text(code)
    script = subprocess.run(
        ["bash", "bash"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=agent.workspace,
        env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": str(agent.workspace)},
        text=True,
        check=False,
    )
    status = script.returncode
    reply = agent.bash(code, one_shot=True)
    assert (reply.stdout, reply.stderr, reply.exit_code) == (
        script.stdout,
        script.stderr,
        status if status >= 0 else 128 - status,
    )


@pytest.mark.parametrize("code", ["exit 3", "set -e; (exit 3)", "(exit 3)"])
def test_the_end_of_a_one_shots_shell_is_nothing_to_be_told(agent: AgentProcess, code: str) -> None:
    reply = agent.bash(code, one_shot=True)
    assert (reply.exit_code, reply.interpreter_restarted, reply.restart_reason) == (3, False, "")


def test_a_one_shot_that_is_killed_says_by_what(agent: AgentProcess) -> None:
    reply = agent.bash("kill -9 $$", one_shot=True)
    assert (reply.exit_code, reply.interpreter_restarted) == (137, True)
    assert "killed by SIGKILL" in reply.restart_reason


def test_processes_left_by_a_one_shot_are_counted_and_end_with_it(agent: AgentProcess) -> None:
    code = "sleep 300 & (sleep 300 &)\necho done"
    reply = agent.bash(code, one_shot=True)
    assert reply.stdout == "done\n"
    (note,) = reply.frame["notes"]
    assert note.startswith("2 background processes were still running when the code ended")
    assert agent.status()["background"] == 0
    assert "notes" not in agent.bash("sleep 300 & kill $!; wait", one_shot=True).frame
    assert "notes" not in agent.bash("sleep 300 &").frame


def test_a_one_shot_may_be_long(agent: AgentProcess) -> None:
    code = "x='" + "y" * 300_000 + "'\necho ${#x}; ls /proc/self/fd; (exit 4)"
    reply = agent.bash(code, one_shot=True)
    assert (reply.stdout.split(), reply.exit_code) == (["300000", "0", "1", "2", "3"], 4)


def test_a_one_shot_has_what_the_set_up_left_in_the_shell(agent: AgentProcess) -> None:
    steps = [{"name": "hook", "code": "greet() { echo hello $1; }"}]
    setup = {"interpreter": "bash", "steps": steps, "timeout_s": 30}
    agent.send(type="hello", setup=setup)
    reply = agent.bash("greet you; sleep 300 &", one_shot=True)
    assert reply.stdout == "hello you\n"
    assert reply.frame["notes"][0].startswith("1 background process was still running")
