"""Adapters: sandboxes of nsm where a framework expects one of its own.

Each module needs its framework, and is imported by whoever uses both:

    pydantic_ai.py       `NsmWorkspace`
    deepagents.py        `NsmBackend`
    deepagents_code.py   provider for ``dcode --sandbox nsm``
    minisweagent.py      `NsmEnvironment`
    swerex.py            `NsmDeployment`, `NsmRuntime`; swerex_shell.py has its shells
    strands.py           `NsmSandbox`
    sandboxes.py         `LazySandbox`, which all of them have in common
    background.py        thread in which trio runs, for callers in threads, asyncio and trio
"""
