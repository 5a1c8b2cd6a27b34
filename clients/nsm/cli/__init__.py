"""The command `nsm`.

    main.py         argv to a verb's module, errors to stderr, exit codes
    options.py      the parser that all verbs use, and what they have in common
    terminal.py     writing to people: output, notes, errors
    render.py       values to text; pure
    harmless.py     what jailed programs print, for a terminal; pure
    live.py         streamed output without gaps and without repeats; pure
    displays.py     what code displays, as text and pictures; pure
    pictures.py     files for pictures
    transcript.py   what was run in a session and what came of it, as text; pure
    places.py       the operands of `cp`; pure
    localfiles.py   files here, read, and written whole or not at all
    builds.py       environments that Nix builds, and how a build comes along
    progress.py     how far a long copy has come

Each verb is a module with ``parser()`` and ``main(arguments) -> exit code``: it parses, makes one
call to the supervisor, renders, returns. Only the module of the verb that is asked for is loaded,
so that `nsm ps` starts in the time of three bare Pythons.
"""
