"""Adapters: sandboxes of nsm where a framework expects one of its own.

Each module needs its framework, and is imported by whoever uses both; `nsm e2b` imports e2b/, which
needs none. They use what `nsm` exports publicly. docs/how-to/integrations.md shows how each is
used.

    smolagents.py        `NsmExecutor`
    inspect_ai.py        `NsmSandboxEnvironment`
    pydantic_ai.py       `NsmWorkspace`
    deepagents.py        `NsmBackend`
    langchain_shell.py   `NsmExecutionPolicy` of LangChain's shell middleware
    deepagents_code.py   provider for ``dcode --sandbox nsm``
    openai_agents.py     `NsmSandboxClient`; openai_agents_terminals.py has the programs that the
                         SDK comes back to, openai_agents_shell.py `NsmShellExecutor`
    minisweagent.py      `NsmEnvironment`
    swerex.py            `NsmDeployment`, `NsmRuntime`; swerex_shell.py has its shells
    strands.py           `NsmSandbox`
    openhands.py         `NsmAgentServer`, a workspace
    jupyter.py           kernel provisioner `nsm`
    acp_terminals.py     `NsmTerminals`, for editors that speak ACP
    e2b/                 `nsm e2b serve`, a server for the clients of E2B
    ray/                 `Pool`: sessions on the nodes of a Ray cluster
    harbor.py            `NsmTaskEnvironment`, for tasks in container images
    nemo_gym.py          `NsmSandboxProvider`, for the same
    verifiers.py         `NsmImageRuntime`, for the same
    images.py            `ImageSandbox`: the sandbox of a container image, as these three use it
    sandboxes.py         `AdapterSandbox`: the sandbox of adapters, made at its first use
    settings.py          settings of a sandbox as a model of pydantic

A new adapter uses `AdapterSandbox`. It also needs a line in the table of integrations.md, an extra
in pyproject.toml, and a directory in tests/integrations with `requirements.txt`, from which
``tools/integrations.py --pin NAME`` writes `constraints.txt`.
"""
