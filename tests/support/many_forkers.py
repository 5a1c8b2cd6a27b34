"""A supervisor whose templates fork themselves as on a machine with many cores, and at once.

It stands before the command of a supervisor: ``python many_forkers.py python -P -m nsmd ...``.
"""

from __future__ import annotations

import runpy
import sys

from nsmd.jail import program_code

CHANGES = ((b"CORES_PER_FORKER = 4", b"CORES_PER_FORKER = .25"), (b"BEHIND = 8", b"BEHIND = 0"))


def eager_template() -> bytes:
    """Return the source of the template with other constants."""
    text = program_code.source_of(program_code.TEMPLATE)
    for old, new in CHANGES:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def main() -> None:
    """Become the supervisor."""
    # What all launchers ask.
    compiled = program_code._compile  # pyright: ignore[reportPrivateUsage]

    def compile_eagerly(python: str, program: str, path: str) -> bytes:
        if program == program_code.TEMPLATE:
            return eager_template()
        return compiled(python, program, path)

    program_code._compile = compile_eagerly  # pyright: ignore[reportPrivateUsage]
    sys.argv = sys.argv[sys.argv.index("nsmd") :]
    runpy.run_module("nsmd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
