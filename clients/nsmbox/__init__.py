"""nsmbox: `nsm box` and `claudebox`, an agent's command line in a jail of its own.

A product beside `nsm`: it uses nsm's public modules, and nsm finds it by name alone. The path of a
request through its packages:

    cli         options become a request
    host        facts about the host are found
    protection  paths that the box must not see or change
    profiles    kinds of boxes
    model       plan: the value that everything above produces and everything below reads
    planning    request and facts become a plan; the plan becomes arguments of bwrap
    consent     a person is shown the plan, and agrees
    start       the jail is started, and waited for

No module imports one that imports it (`tests/structure/test_imports.py`).
"""
