"""Notes about limits and networks, about several rules at once, and about arbitrary text."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denial_notes import (
    ADDING,
    FULL,
    MEMORY,
    MEMORY_MB,
    NOT_INSTALLED,
    OFF,
    PROCESSES,
    PROJECT,
    WRITABLE,
    notes_of,
    python_package,
)
from nsmd.denials.explaining import explain
from nsmd.denials.messages import PHRASES, TRIGGERS, is_beyond_machines
from nsmd.denials.suspicion import SUSPICIOUS, looks_suspicious
from nsmd.model.policy import policy_of
from nsmd.model.values import (
    Artifact,
    DeviceNode,
    Environment,
    ImageRoot,
    JailSizes,
    JailSpec,
    LimitEvent,
    NetworkRule,
    Outcome,
    SessionLimits,
    ShownDevices,
)

MEMORY_LIMIT = LimitEvent(
    kind="memory",
    limit=MEMORY_MB << 20,
    enforced_by="watchdog",
    what="2 processes were killed",
    peak_bytes=(170 << 20) + 1,
    times=2,
)
PROCESS_LIMIT = LimitEvent(
    kind="processes",
    limit=48,
    enforced_by="cgroup",
    what="a process or thread was not started, 7 times",
    times=7,
)
SOME = NetworkRule(mode="allow", allow=("example.org", "*.example.com:443"))
NO_NAME = "curl: (6) Could not resolve host: pypi.org\n"


READ_ONLY = "touch: cannot touch '{}': Read-only file system\n"
LIMITED = "policy: network is limited to example.org, *.example.com:443"
KILLED: dict[str, Any] = {
    "exit_code": 137,
    "events": (MEMORY_LIMIT,),
    "interpreter_restarted": True,
}
IN_A_GROUP = dataclasses.replace(
    MEMORY_LIMIT, limit=234 << 20, enforced_by="cgroup", peak_bytes=234 << 20
)
MANY = tuple(f"h{number}.example.net:443" for number in range(9))
TOO_LARGE = "cp: cannot stat 'x': Value too large for defined data type\n"

NOTES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a session loses its variables": ("", KILLED, "reached (peak 171 MB); variables were lost"),
    "a one-shot has none to lose": (
        "",
        {**KILLED, "keeps_state": False},
        "2 processes were killed",
    ),
    "other processes were killed": ("Killed\n", {"events": (MEMORY_LIMIT,)}, "2 processes were"),
    "a group counts files": ("", {**KILLED, "events": (IN_A_GROUP,)}, "(files in memory included)"),
    "a kill that was counted is not guessed again": (
        "Traceback (most recent call last):\nMemoryError\n",
        {"events": (MEMORY_LIMIT,)},
        "killed: memory limit",
    ),
    "a refused process, though nothing was said": ("", {"events": (PROCESS_LIMIT,)}, PROCESSES),
    "memory of each process": ("sort: memory exhausted\n", {}, MEMORY),
    "several rules are one line": (
        NO_NAME + READ_ONLY.format("/project/x"),
        {},
        f"{OFF}; {PROJECT.removeprefix('policy: ')}",
    ),
    "a place is named once": (
        "".join(READ_ONLY.format(f"/project/{n}") for n in "abc"),
        {},
        PROJECT,
    ),
    "two places": (
        READ_ONLY.format("/usr/x") + READ_ONLY.format("/x/x"),
        {},
        f"policy: /usr is read-only; {WRITABLE}",
    ),
    "the place that an overlay would open": (
        READ_ONLY.format("/project/x") + READ_ONLY.format("/usr/x"),
        {},
        "unless the user sets the project's mode to overlay (/project); writable: ",
    ),
    "a copied project is full": (
        "touch: cannot touch '/project/x': No space left on device\n",
        {"mode": "overlay"},
        "policy: /project is full",
    ),
    "a copied project is writable": (READ_ONLY.format("/project/x"), {"mode": "overlay"}, ""),
    "a file that is too large is not a denial": (TOO_LARGE, {}, ""),
    "places that are not shown": (
        "cat: /home/a: No such file or directory\ncat: /root/b: No such file or directory\n",
        {},
        "policy: the host's /home, /root are not shown here",
    ),
    "refused hosts": (
        "",
        {"network": SOME, "refused": ("pypi.org:443",)},
        f"{LIMITED}; refused: p",
    ),
    "many refused hosts": ("", {"network": SOME, "refused": MANY}, "h3.example.net:443, 5 more"),
    "an empty list": (
        "",
        {"network": NetworkRule(mode="allow"), "refused": ("pypi.org:443",)},
        "limited to an empty list of hosts; refused: pypi.org:443",
    ),
    "past the proxy": (NO_NAME, {"network": SOME}, "the proxy that HTTPS_PROXY names"),
    "a name that the whole network lacks": (NO_NAME, {"network": NetworkRule(mode="full")}, ""),
    "a command has names of packages only": (
        "error: externally-managed-environment\n",
        {"code": "pip install 'a; rm -rf ~'"},
        python_package("PACKAGES"),
    ),
    "options of pip are no packages": (
        "error: externally-managed-environment\n",
        {"code": "pip install --upgrade opencv-python"},
        python_package("opencv-python"),
    ),
}
"""A program's words, how it ended, and what its one note is about; empty where there is none."""


@pytest.mark.parametrize("name", NOTES)
def test_the_rule_that_stopped_something_is_named(name: str) -> None:
    said, ended, expected = NOTES[name]
    notes = notes_of(said, **ended)
    if expected:
        (note,) = notes
        assert expected in note
    else:
        assert notes == ()


def test_the_loss_of_a_gpu_is_told_even_if_code_goes_on() -> None:
    """CUDA only warns, and code silently uses the processor."""
    warned = "UserWarning: CUDA initialization: Found no NVIDIA driver on your system."
    node = DeviceNode(source="/dev/null", path="/dev/nvidia0", number=(1, 3))
    ml = Environment(
        name="ml", interpreter="python", shown_devices=ShownDevices(nodes=(node,), driver="580")
    )
    outcome = Outcome(stderr=warned, exit_code=0)
    spec = JailSpec(environment=ml, project=None, sizes=JailSizes())
    (note,) = explain(policy_of(spec, SessionLimits(), "cold"), outcome)
    assert note.startswith("gpu: the GPU of this environment cannot be used")
    assert notes_of(warned, exit_code=0, environments=(ml,)) == ()
    (note,) = notes_of(warned, environments=(ml,))
    assert note == "gpu: this environment has no GPU; ml has one"


def test_the_name_of_a_killed_process_is_one_line() -> None:
    event = dataclasses.replace(MEMORY_LIMIT, what="a\n]\x1b[2Jb" + "c" * 500)
    (note,) = notes_of(events=(event,))
    assert note.startswith("killed: memory limit 160 MB reached (peak 171 MB); a ] [2Jbccc")
    assert len(note) < 200


NO_NUMPY = (
    "Traceback (most recent call last):\n"
    '  File "<exec-1>", line 1, in <module>\n'
    "ModuleNotFoundError: No module named 'numpy'\n"
)
PLAIN = Environment(name="python", interpreter="python")
SCIENCE = Environment(name="science", interpreter="python", packages=("numpy", "sklearn"))
PLOTS = Environment(name="plots", interpreter="python", preload=("numpy.linalg",))
BROKEN = Environment(name="broken", interpreter="python", preload=("numpy",), problem="gone")


def test_environments_that_have_a_package_are_named() -> None:
    how = f"{ADDING} --pip numpy`"
    everything = (PLAIN, SCIENCE, PLOTS, BROKEN)
    where = "numpy is in environments science, plots"
    assert notes_of(NO_NUMPY, environments=everything) == (f"{NOT_INSTALLED}; {where}{how}",)
    assert notes_of(NO_NUMPY, environments=everything, network=SOME) == (f"policy: {where}",)
    assert notes_of(NO_NUMPY, environments=(PLAIN, BROKEN)) == (
        f"{NOT_INSTALLED}; no environment is known to have numpy{how}",
    )


WEB = Environment(name="web", interpreter="node", packages=("numpy", "zod"))


def test_packages_of_node_are_not_those_of_python() -> None:
    (note,) = notes_of("Uncaught Error: Cannot find module 'zod'\n", environments=(WEB, SCIENCE))
    assert f"{NOT_INSTALLED}; zod is in environment web; the user can" in note
    assert "no environment is known to have numpy" in notes_of(NO_NUMPY, environments=(WEB,))[0]


IMAGE = Environment(
    name="web", interpreter="bash", image=ImageRoot(directory="/x", python=("/run/python3",))
)
NIX = Environment(name="nix", interpreter="bash", artifact=Artifact(run="/nix/store/x/bin/run"))


@pytest.mark.parametrize(
    ("environment", "how"),
    [(IMAGE, "`nsm env add NAME --image IMAGE`"), (NIX, "can add packages to its flake")],
)
def test_packages_of_a_hidden_host_are_no_help(environment: Environment, how: str) -> None:
    (note,) = notes_of("E: Unable to locate package jq\n", environment=environment)
    assert "on the host" not in note
    assert how in note
    (note,) = notes_of("cat: /home/a: No such file or directory\n", environment=environment)
    assert note.endswith("of the host, the project can be read")


def test_only_the_ends_of_a_flood_are_looked_at() -> None:
    line = "cat: write error: No space left on device\n"
    flood = "x\n" * 100_000
    assert notes_of(flood + line) == (FULL,)
    assert notes_of(line + flood) == (FULL,)
    assert notes_of(flood + line + flood) == ()


@pytest.mark.parametrize(
    ("text", "beyond"),
    [
        ("'a' * (1 << 62)", True),
        ("bytearray(10**15)", True),
        ("[0] * 1000**5", True),
        ("new ArrayBuffer(2 ** 52)", True),
        ("new ArrayBuffer(1e15)", True),
        ("bytearray(100000000000000)", True),
        ("Unable to allocate 7.11 PiB for an array", True),
        ("bytearray(1 << 30)", False),
        ("bytearray(10**11)", False),
        ("np.ones(10**9)", False),
        ("new ArrayBuffer(3e9)", False),
        ("Unable to allocate 7.45 GiB for an array", False),
        ("while True: x.append(1)", False),
    ],
)
def test_a_size_that_no_machine_has_is_no_denial(text: str, beyond: bool) -> None:
    assert is_beyond_machines(text) is beyond


def well(stdout: str) -> Outcome:
    return Outcome(stdout=stdout, stderr="", exit_code=0)


def test_a_success_is_not_looked_at() -> None:
    assert not looks_suspicious(well("42\n"))
    assert not looks_suspicious(well("x" * 1_000_000))
    assert looks_suspicious(well("cannot: [Errno 30] Read-only file system: '/project/x'\n"))
    assert looks_suspicious(Outcome(stdout="", stderr="", exit_code=1))


WORDS = st.sampled_from(
    [
        *TRIGGERS,
        *SUSPICIOUS,
        *(phrase.pattern.pattern for phrase in PHRASES),
        "Traceback (most recent call last):\n",
        '  File "<exec 1>", line 1, in f\n',
        "    open('/project/x', 'w')\n",
        "OSError: [Errno 30] ",
        "[Errno -2] ",
        "MemoryError",
        "/project/x",
        "::1",
        "127.0.0.1",
        "localhost.example.org",
        "'",
        '"',
        ": ",
        "\n",
        "\x00",
        "\ud800",
        "(os error 30)",
    ]
)
TEXTS = st.lists(WORDS | st.text(max_size=20), max_size=30).map("".join)


@given(stderr=TEXTS, stdout=TEXTS, code=TEXTS, exit_code=st.integers(0, 255))
def test_whatever_is_said_a_note_is_one_short_line(
    stderr: str, stdout: str, code: str, exit_code: int
) -> None:
    notes = notes_of(stderr, stdout=stdout, code=code, exit_code=exit_code)
    assert len(notes) <= 1  # nothing was killed
    for note in notes:
        assert note.startswith("policy: ")
        assert note.isprintable()
        assert len(note) < 1000


ENDLESS = (
    " (os error 5)",
    ": /a/",
    "[[",
    "((",
    "''",
    '"',
    ": fork",
    ".a",
    "a.",
    "::",
    "o such file",
)


@pytest.mark.parametrize("piece", ENDLESS)
def test_no_text_takes_long(piece: str) -> None:
    """A pattern that tries all ways to read a line would not come to an end."""
    line = (f"x: Read-only file system{piece * 200}"[:900] + "\x00\n") * 25
    notes_of(line)
