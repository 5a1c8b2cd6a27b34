"""The command `nsm`.

    entry.py             the entry point, which loads the rest
    main.py              argv to a verb's module, errors to stderr, exit codes
    options.py           commands as declarations, and how each is carried out
    verbs/               the verbs, by subject
    terminal.py          writing to people: output, notes, errors; questions
    pager.py             long text, through the pager
    connection.py        a client of the supervisor that runs, and sessions that people name
    all_hosts.py         clients of all machines, for `--all-hosts`
    foreground.py        a job that has this terminal, or these pipes
    systemd.py           units, and the user's systemd, for `nsm service`
    render/              values as text
    streams/             output as it comes: without gaps, repeats and control characters; pure
    attach/, top/        the screens of `nsm attach` and `nsm top`

A verb, or an action of one, is a declaration of its options above the function that carries it out:
that makes one call to the supervisor, renders, and returns the exit code. Only the module of the
verb that is asked for is loaded, so that `nsm ps` starts in the time of three bare Pythons.
"""
