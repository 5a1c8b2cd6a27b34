"""`nsm doctor`: check what nsm needs on this host."""

from __future__ import annotations

from nsm.cli import supervisor_program
from nsm.cli.options import Parser


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "doctor",
        "Check what nsm needs on this host, and say how to get what is missing.",
        "Exits 0 when code can be run, else 1. In a box it tells what reaches in there.",
    )
    parser.add_json("the checks")
    return parser


def main(arguments: list[str]) -> int:
    """Let the supervisor's program check; it knows. In a box it is not there."""
    from nsm.cli.verbs import doctor_in_box  # noqa: PLC0415  # other verbs' options are asked for, too

    options = parser().parse_args(arguments)
    if doctor_in_box.in_a_box():
        return doctor_in_box.show(as_json=options.json)
    return supervisor_program.replace_us("--doctor", *(["--json"] if options.json else []))
