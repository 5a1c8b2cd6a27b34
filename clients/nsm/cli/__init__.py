"""The command `nsm`.

    entry.py             the entry point, which loads the rest
    main.py              argv to a verb's module, errors to stderr, exit codes
    verbs/               one module for each verb
    options.py           the parser that all verbs use, and what they have in common
    terminal.py          writing to people: output, notes, errors
    pager.py             long text, through the pager
    connection.py        a client of the supervisor for verbs that start none
    all_hosts.py         clients of all machines, for `--all-hosts`
    targets.py           sessions that people name
    confirm.py           questions before a verb does harm
    supervisor_program.py   verbs that `nsm-supervisor` carries out
    code_source.py       where the code of `nsm run` comes from
    audit_log.py         lines of the audit: read, chosen, put into words
    project_changes.py   what `nsm diff`, `apply` and `discard` have in common
    render/              values as text; pure
    streams/             output as it comes: without gaps, repeats and control characters; pure
    files/               files here: of `nsm cp`, and pictures
    jobs/                a program of a session in the foreground
    attach/, top/        the screens of `nsm attach` and `nsm top`
    systemd/             units, and the user's systemd, for `nsm service`

Each verb is a module with ``parser()`` and ``main(arguments) -> exit code``: it parses, makes one
call to the supervisor, renders, returns. Only the module of the verb that is asked for is loaded,
so that `nsm ps` starts in the time of three bare Pythons.
"""
