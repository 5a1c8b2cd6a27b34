"""A program that acts like nix's command line, as far as nsm uses it.

Nix is the seam where a double is right: the real one cannot be made to hang, to be killed or to
print megabytes at will. What it does with a reference is decided by a plan beside it, by the
attribute after ``#``; a test may change the plan between two runs.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

VERSION = "nix (Nix) 2.18.1"

_PROGRAM = r"""
import json, os, resource, signal, subprocess, sys, time

HERE = os.path.dirname(os.path.realpath(__file__))

def say(**message):
    sys.stderr.write("@nix " + json.dumps(message) + "\n")
    sys.stderr.flush()

def fail(text, code=1):
    say(action="msg", level=0, msg="\x1b[31;1merror:\x1b[0m " + text)
    sys.exit(code)

def main():
    words = sys.argv[1:]
    with open(os.path.join(HERE, "plan.json")) as file:
        plan = json.load(file)
    with open(os.path.join(HERE, "calls"), "a") as file:
        told = {"arguments": words, "variables": dict(os.environ)}
        told["files"] = resource.getrlimit(resource.RLIMIT_NOFILE)
        file.write(json.dumps(told) + "\n")
    if words == ["--version"]:
        print(plan["version"])
        return
    options, reference = words, None
    if "--" in words:
        options, reference = words[: words.index("--")], words[words.index("--") + 1]
    attribute = (reference or "").rpartition("#")[2]
    steps = plan["steps"].get(attribute)
    if steps is None:
        fail("flake %r does not provide attribute %r" % (reference, attribute))
    say(action="start", id=1, level=4, type=0, text="evaluating")
    say(action="stop", id=1)
    say(action="start", id=2, level=0, type=102, text="")
    say(action="start", id=3, level=0, type=104, text="")
    say(action="result", id=3, type=105, fields=[0, 1, 1, 0])
    drv = "/nix/store/" + "a" * 32 + "-" + attribute + ".drv"
    say(action="start", id=4, level=3, type=105, text="building '%s'" % drv, fields=[drv, "", 1, 1])
    for step, value in steps:
        if step == "log":
            for line in value:
                say(action="result", id=4, type=101, fields=[line])
        elif step == "raw":
            sys.stderr.write(value)
            sys.stderr.flush()
        elif step == "flood":
            line = "@nix " + json.dumps(
                {"action": "result", "id": 4, "type": 101, "fields": ["x" * 1000]}) + "\n"
            for _ in range(value):
                sys.stderr.write(line)
        elif step == "print":
            sys.stdout.write(value)
            sys.stdout.flush()
        elif step == "gate":
            with open(value) as gate:
                gate.read()
        elif step == "deaf":
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        elif step == "builder":
            # As nix's builders: in a session of its own, with nothing of ours but its life.
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", "import signal; signal.pause()"],
                start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            with open(value, "w") as file:
                file.write(str(child.pid))
        elif step == "hang":
            say(action="result", id=4, type=101, fields=["it hangs now"])
            while True:
                signal.pause()
        elif step == "kill":
            os.kill(os.getpid(), value)
        elif step == "fail":
            fail(value)
        elif step == "profile":
            link = options[options.index("--profile") + 1]
            os.symlink(value, link)
        elif step == "out":
            say(action="stop", id=4)
            say(action="result", id=3, type=105, fields=[1, 1, 0, 0])
            if "--out-link" in options:
                link = options[options.index("--out-link") + 1]
                if os.path.lexists(link):
                    os.unlink(link)
                os.symlink(value, link)
            print(json.dumps([{"drvPath": drv, "outputs": {"out": value}}]))

try:
    main()
except KeyboardInterrupt:
    fail("interrupted by the user")
"""


class FakeNix:
    """The program in a directory of its own.

    Args:
        folder: is made; goes onto PATH.
    """

    def __init__(self, folder: Path, version: str = VERSION) -> None:
        folder.mkdir(mode=0o755)
        self.folder = folder
        self.program = folder / "nix"
        # The one behind a `.venv`: a path with a space in it would be cut there.
        self.program.write_text(f"#!{os.path.realpath(sys.executable)} -IS\n{_PROGRAM}")
        self.program.chmod(0o755)
        self._plan: dict[str, Any] = {"version": version, "steps": {}}
        self._save()

    def builds(self, attribute: str, *steps: tuple[str, Any]) -> str:
        """Decide what it does with an attribute.

        Returns:
            A reference with that attribute.
        """
        self._plan["steps"][attribute] = steps
        self._save()
        return f"path:/flake#{attribute}"

    def calls(self) -> list[dict[str, Any]]:
        """Return the recorded calls, without questions for its version."""
        try:
            lines = (self.folder / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        calls: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [call for call in calls if call["arguments"] != ["--version"]]

    def _save(self) -> None:
        path = self.folder / "plan.json"
        waiting = path.with_suffix(".new")
        waiting.write_text(json.dumps(self._plan))
        waiting.replace(path)
