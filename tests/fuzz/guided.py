"""Coverage-guided fuzzing of what reads others' bytes, with Atheris: `make fuzz`.

Each reader is fuzzed for a while in a process of its own, from the inputs of `test_codecs.py`. What
raises something else than it says ends the run with 1; the input that did it is shown.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


def main() -> int:
    """Fuzz all readers, or the named ones."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader (60)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    parser.add_argument("readers", nargs="*")
    options = parser.parse_args()
    if options.inside:
        _fuzz(options.inside, options.seconds, options.readers[0])
        return 0
    sys.path[:0] = [str(TESTS), str(TESTS / "support")]
    from fuzz.test_codecs import SEEDS  # after the path, and not in the children

    found = 0
    for name in options.readers or SEEDS:
        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(SEEDS[name]):
                Path(corpus, str(number)).write_bytes(b"\xff" + seed)
            words = ["--inside", name, "--seconds", str(options.seconds), corpus]
            ended = subprocess.run(
                [sys.executable, __file__, *words], capture_output=True, text=True, check=False
            )
        lines = ended.stderr.splitlines()
        runs = next((line for line in reversed(lines) if line.startswith("Done ")), "no end")
        print(f"{name}: {'found something' if ended.returncode else 'held'}; {runs}", flush=True)
        if ended.returncode:
            found = 1
            print("\n".join(lines[-60:]))
    return found


def _fuzz(name: str, seconds: int, corpus: str) -> None:
    """In a process of its own: never returns where something is found."""
    # Not one of the packages that `make setup` installs, so that no type checker knows it.
    atheris: Any = importlib.import_module("atheris")
    sys.path[:0] = [str(TESTS), str(TESTS / "support")]
    with atheris.instrument_imports(include=["nsm", "nsmd", "sandbox", "fuzz_codecs"]):
        from fuzz_codecs import CODECS
    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            "-max_len=4096",
            f"-artifact_prefix={corpus}/",
            corpus,
        ],
        CODECS[name],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
