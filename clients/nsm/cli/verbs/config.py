"""`nsm config`: check or show the configuration."""

from __future__ import annotations

from nsm.cli import supervisor_program
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.render.environments import not_preloaded


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "config",
        "Check the configuration, or show what is in effect.",
        "Exits 1 when the configuration has mistakes; each is named with its key.\n"
        "`check` also names devices and images that this machine lacks. Those are no mistakes.\n"
        "`nsm reload --config` has the supervisor read it again.",
    )
    # `reload` is the older form of `nsm reload --config`, which help does not name.
    parser.add_argument(
        "action", choices=["check", "show", "reload"], metavar="{check,show}", help="what to do"
    )
    parser.add_argument("--config", metavar="FILE", help="instead of the user's own config.toml")
    parser.add_json("with `show`, the configuration")
    return parser


def main(arguments: list[str]) -> int:
    """Let the supervisor's program do it; it knows the keys."""
    options = parser().parse_args(arguments)
    if options.action == "reload":
        if options.config is not None:
            parser().error("`reload` takes no --config: the supervisor reads the file it has")
        return reload(as_json=options.json)
    more = ["--config", options.config] if options.config is not None else []
    if options.json:
        more.append("--json")
    return supervisor_program.replace_us(f"--{options.action}-config", *more)


def reload(*, as_json: bool) -> int:
    """Have the supervisor read the configuration again, and show what has changed."""
    from nsm.cli import connection, terminal  # noqa: PLC0415  # not to check or show
    from nsm.cli.render.formats import visible  # noqa: PLC0415
    from nsm.wire.answers import read  # noqa: PLC0415  # as above

    client = connection.connect()
    if client is None:
        terminal.out("null" if as_json else "")
        return EXIT_OK
    with client:
        answer = client.call("config_reload")
        for line in not_preloaded(client.envs(preload=True)):
            terminal.note(line)
    problems: list[str] = [str(problem) for problem in answer.get("problems", ())]
    if as_json:
        terminal.out_json({"changes": answer["changes"], "problems": problems})
    elif problems:
        for problem in problems:
            terminal.note(visible(problem))
        terminal.note("nothing was changed. Correct these, then reload again.")
    else:
        changes = read(list[dict[str, object]], answer, "changes")
        for row in changes:
            when = "" if row["applied"] else "  (after `nsm reload`)"
            terminal.out(visible(f"{row['key']}: {row['old']} -> {row['new']}{when}"))
        if not changes:
            terminal.out("nothing has changed")
    return EXIT_FAILED if problems else EXIT_OK
