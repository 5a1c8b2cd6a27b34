"""The verbs of `nsm`; `nsm.cli.main` has the table of them.

    run.py          run
    map.py          map
    jobs.py         exec, jobs
    screens.py      attach, top
    sessions.py     ps, inspect, interrupt, undo, fork, kill
    records.py      logs, events
    audit.py        audit; `bridge audit`
    replay.py       replay
    saves.py        save, restore, tree
    network.py      net, port, secrets
    cp.py           cp
    changes.py      diff, apply, discard
    env.py          env
    bridge.py       bridge
    e2b.py          e2b
    supervisor.py   status, drain, reload, shutdown, http, config
    service.py      service
    host.py         host
    setup.py        setup, uninstall
    doctor.py       doctor
    completion.py   completion, and `__complete`, which the shells' scripts ask

`nsm box` is a verb of another package, `nsmbox`.
"""
