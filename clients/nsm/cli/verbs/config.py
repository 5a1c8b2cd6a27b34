"""`nsm config`: check or show the configuration."""

from __future__ import annotations

from nsm.cli import supervisor_program
from nsm.cli.options import Parser


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "config",
        "Check the configuration, or show what is in effect.",
        "Exits 1 when the configuration has mistakes; each is named with its key.\n"
        "`check` also names devices and images that this machine lacks. Those are no mistakes.\n"
        "`nsm reload --config` has the supervisor read it again.",
    )
    parser.add_argument(
        "action", choices=["check", "show"], metavar="{check,show}", help="what to do"
    )
    parser.add_argument("--config", metavar="FILE", help="instead of the user's own config.toml")
    parser.add_json("with `show`, the configuration")
    return parser


def main(arguments: list[str]) -> int:
    """Let the supervisor's program do it; it knows the keys."""
    options = parser().parse_args(arguments)
    more = ["--config", options.config] if options.config is not None else []
    if options.json:
        more.append("--json")
    return supervisor_program.replace_us(f"--{options.action}-config", *more)
