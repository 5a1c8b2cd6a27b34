"""Provider of Deep Agents Code, with the program `dcode` itself and a scripted model."""

# pyright: basic, reportMissingImports=false
# mypy: ignore-errors

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError

import adapter_faults
import host_attacks
import nsm
import scripted_model
from nsm.integrations.deepagents_code import NsmProvider

if TYPE_CHECKING:
    from e2e_support import Supervisor

LIMIT_S = 300
OF_NSM = ("NSM_SOCKET", "NSM_SUPERVISOR", "XDG_STATE_HOME", "XDG_CONFIG_HOME")


def dcode(home: Path, *commands: str, options: list[str]) -> list[str]:
    """Have dcode's agent run commands, and return what its tools answered."""
    answers = [scripted_model.call("execute", command=each) for each in commands]
    script = home / "answers.json"
    script.write_text(json.dumps([*answers, {"role": "assistant", "content": "It is done."}]))
    model = [sys.executable, scripted_model.__file__, str(script), "0"]
    with subprocess.Popen(model, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            port = server.stdout.readline().strip()
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                **{name: os.environ[name] for name in OF_NSM if name in os.environ},
                "OPENAI_API_KEY": "-",
                "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
            }
            program = [str(Path(sys.executable).parent / "dcode"), *options, "--no-mcp"]
            program += ["--no-tracing", "-q", "-M", "openai:gpt-4o", "-n", "Do it."]
            program += ["--model-params", '{"use_responses_api": false}']
            done = subprocess.run(
                program, env=environ, cwd=home, input="", text=True, capture_output=True,
                timeout=LIMIT_S, check=False,
            )  # fmt: skip
        finally:
            server.terminate()
        asked = [json.loads(line) for line in server.stdout]
    assert "It is done." in done.stdout, done.stdout + done.stderr
    return [each["content"] for each in asked if each["role"] == "tool"]


def test_dcode(shared: Supervisor, tmp_path: Path) -> None:
    """Each run has a session of its own. dcode kills its server soon after it has asked it to end;
    so the session may be left, until its idle time is over."""
    with host_attacks.target(tmp_path) as target:
        attack = f"cat >a.py <<'EOF'\n{target.code}\nEOF\npython3 a.py | sed 's/^/gained: /'"
        answers = dcode(
            tmp_path, "pwd; echo one two >f; wc -w f", attack, options=["--sandbox", "nsm"]
        )
    assert answers[0].startswith("/workspace\n2 f\n")
    assert f"gained: {host_attacks.NONE}" in answers[1]
    with nsm.Client() as client:
        assert all(row.labels["owner"] == "deepagents" for row in client.sessions())
        client.kill_labelled({"owner": "deepagents"})


def test_dcode_in_a_sandbox_that_is_there(shared: Supervisor, tmp_path: Path) -> None:
    provider = NsmProvider()
    first = provider.get_or_create()
    first.execute("echo kept >f")
    (answer,) = dcode(tmp_path, "cat f", options=["--sandbox", "nsm", "--sandbox-id", first.id])
    assert answer.startswith("kept\n")
    provider.delete(sandbox_id=first.id)


def test_a_supervisor_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while dcode's command runs, which goes on; so does dcode."""
    with adapter_faults.own_supervisor(monkeypatch) as it, ThreadPoolExecutor(1) as pool:
        backend = NsmProvider().get_or_create()
        slow = "touch begun; until [ -e go ]; do sleep 0.05; done; echo after"
        options = ["--sandbox", "nsm", "--sandbox-id", backend.id]
        answers = pool.submit(dcode, tmp_path, slow, "cat go", options=options)
        backend.execute("until [ -e begun ]; do sleep 0.05; done", timeout=LIMIT_S)
        adapter_faults.kill(it)
        assert backend.execute("echo kept >part; mv part go").exit_code == 0
        first, second = answers.result()
        assert first.startswith("after\n")
        assert second.startswith("kept\n")
        backend.close()


def test_sandboxes_are_made_found_and_deleted(shared: Supervisor) -> None:
    provider = NsmProvider()
    first = provider.get_or_create()
    first.execute("echo a >f")
    second = provider.get_or_create(sandbox_id=first.id)
    assert second.execute("cat f").output == "a\n"
    provider.delete(sandbox_id=first.id)
    provider.delete(sandbox_id=first.id)
    with pytest.raises(SandboxNotFoundError):
        provider.get_or_create(sandbox_id=first.id)


def test_settings_and_metadata(shared: Supervisor) -> None:
    provider = NsmProvider()
    backend = provider.get_or_create(memory_mb=256)
    assert provider.metadata is not None
    assert backend.execute("pwd").output == provider.metadata.working_dir + "\n"
    backend.close()
    with pytest.raises(TypeError):
        provider.get_or_create(no_such_setting=1)
