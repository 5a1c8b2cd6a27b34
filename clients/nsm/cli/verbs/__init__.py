"""The verbs of `nsm`, a module each; `nsm.cli.main` has the table of them.

    Run code        run, exec, jobs, attach, interrupt, undo
    Sessions        ps, top, logs, replay, inspect, net, port, fork, save, restore, tree, kill
    Files           cp, diff, apply, discard
    Environments    env
    The host        bridge, with its action bridge_audit; e2b; secrets
    The supervisor  status, events, audit, http, drain, reload, shutdown, service
    Set-up          setup, doctor (doctor_in_box: what it tells in a box), config, completion,
                    uninstall
    Older forms     envs; pool, stats and metrics, which are actions of status
    Hidden          complete: candidates for the shells' completion scripts

`nsm box` is a verb of another package, `nsmbox`.
"""
