"""A pool on a real Ray cluster of several nodes on this machine."""

# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.util import placement_group, remove_placement_group

import framework_pages
import nsm
from nsm.integrations.ray import NodeLostError, Pool
from nsm.wire.errors import (
    BadRequestError,
    EnvironmentUnavailableError,
    NotRunningError,
    SessionEndedError,
)
from processes import collect
from ray_world import PATIENCE_S, SESSIONS, World, sandbox_on

if TYPE_CHECKING:
    from pathlib import Path


def test_one_program(pool: Pool) -> None:
    result = pool.run("print(6 * 7)", timeout_s=5)
    assert (result.stdout, result.exit_code) == ("42\n", 0)
    assert pool.run("echo $((6 * 7))", env="bash").stdout == "42\n"
    assert asyncio.run(pool.arun("print(6 * 7)")).stdout == "42\n"


def test_many_programs_on_all_nodes_in_their_order(pool: Pool, nodes: list[Any]) -> None:
    before = {node: len(session_starts(facts)) for node, facts in pool.nodes().items()}
    results = list(pool.map([f"print({number})" for number in range(200)], timeout_s=20))
    assert [int(result.stdout) for result in results] == list(range(200))
    ran = {node: len(session_starts(facts)) - before[node] for node, facts in pool.nodes().items()}
    assert set(ran) == {node.node_id for node in nodes}
    assert all(ran.values()), ran


def session_starts(facts: dict[str, Any]) -> list[str]:
    """Lines of a supervisor's audit."""
    path = os.path.join(os.path.dirname(facts["socket"]), "state/nsm/audit.jsonl")
    with open(path, encoding="utf-8") as file:
        return file.readlines()


def test_programs_are_taken_as_results_are(pool: Pool) -> None:
    taken = count()
    endless = (f"print({number})" for number in taken)
    results = pool.map(endless, at_once=2, group=3)
    assert [int(next(results).stdout) for _ in range(10)] == list(range(10))
    results.close()  # type: ignore[attr-defined]
    assert next(taken) < 40


def test_code_that_fails_is_a_result_and_code_that_cannot_run_an_error(pool: Pool) -> None:
    codes = ["1 / 0", "import time; time.sleep(60)", "print(1)"]
    failed, late, fine = pool.map(codes, timeout_s=0.5)
    assert (failed.exit_code, late.timed_out, fine.stdout) == (1, True, "1\n")
    with pytest.raises(nsm.NsmError) as caught:
        pool.run("1", env="none-such")
    assert caught.value.code == "unknown-environment"
    errors = list(pool.map(["1", "2"], env="none-such", return_errors=True))
    assert [error.code for error in errors if isinstance(error, nsm.NsmError)] == [
        "unknown-environment"
    ] * 2
    with pytest.raises(TypeError, match="nonsense"):
        pool.run("1", nonsense=True)  # type: ignore[call-arg]


def test_a_sandbox_has_the_whole_interface(pool: Pool) -> None:
    with pool.sandbox(files={"numbers.txt": "1 2 39"}, labels={"batch": "7"}) as sandbox:
        assert sandbox.run("x = 6").exit_code == 0
        pieces: list[str] = []
        result = sandbox.run("print(x * 7)", on_output=lambda _, text: pieces.append(text))
        assert result.stdout == "".join(pieces) == "42\n"
        assert sandbox.exec(["wc", "-w", "numbers.txt"]).collect().stdout == b"3 numbers.txt\n"
        large = os.urandom(3_000_000)
        sandbox.files.write("more/large", large, parents=True)
        assert sandbox.files.read("more/large") == large
        assert sandbox.run("print(input())", stdin=b"given\n").stdout == "given\n"
        assert sandbox.labels["batch"] == "7"
        copied = sandbox.fork("copy").forks[0].id
        assert copied != sandbox.id
        name, path = sandbox.name, pool.nodes()[sandbox.node_id]["socket"]
    with nsm.Client(socket_path=path, autostart=False) as client:
        assert name not in [row.name for row in client.sessions()]


def test_a_sandbox_under_asyncio(pool: Pool) -> None:
    async def main() -> list[str]:
        async def one(number: int) -> str:
            async with await pool.asandbox() as sandbox:
                await sandbox.acall(lambda box: box.run(f"x = {number}"))
                result = await sandbox.acall(lambda box: box.run("print(x * 2)"))
                return result.stdout

        return await asyncio.gather(*map(one, range(10)))

    assert asyncio.run(main()) == [f"{2 * number}\n" for number in range(10)]


def test_calls_wait_for_a_place(pool: Pool) -> None:
    """More sandboxes at once than Ray has places for: the others wait."""

    def one(number: int) -> str:
        with pool.sandbox() as sandbox:
            return sandbox.run(f"print({number})").stdout

    with ThreadPoolExecutor(3 * SESSIONS) as threads:
        outputs = list(threads.map(one, range(3 * SESSIONS)))
    assert outputs == [f"{number}\n" for number in range(3 * SESSIONS)]


def test_ray_has_its_resource_back(nodes: list[Any]) -> None:
    with Pool() as pool, pool.sandbox():
        pass
    everything = placement_group([{"nsm_sessions": SESSIONS}] * len(nodes))
    assert everything.wait(PATIENCE_S), "somebody has sessions that nobody uses"
    remove_placement_group(everything)


def test_a_killed_node(world: World, pool: Pool) -> None:
    with world.further_node() as node:
        sandbox = sandbox_on(pool, node)
        sandbox.run("x = 1")
        facts = pool.nodes()[node.node_id]
        codes = [f"import time; time.sleep(0.05); print({number})" for number in range(120)]
        outputs: list[int] = []
        for result in pool.map(codes):
            outputs.append(int(result.stdout))
            if len(outputs) == 20:
                world.kill(node)
        assert outputs == list(range(120))
        with pytest.raises(SessionEndedError, match="has gone") as caught:
            sandbox.run("print(x)")
        assert caught.value.data["lost"]
        sandbox.close()
        collect(facts["pid"])


def test_a_session_is_restored_from_its_save(world: World, pool: Pool, tmp_path: Path) -> None:
    with world.further_node() as node:
        sandbox = sandbox_on(pool, node, save=str(tmp_path / "a.nsmsave"))
        sandbox.run("x = 41")
        sandbox.files.write("notes.txt", "kept")
        sandbox.save()
        sandbox.run("x = 0")
        pid = pool.nodes()[node.node_id]["pid"]
        world.kill(node)
        collect(pid)
        with pytest.raises(SessionEndedError):
            sandbox.run("x")
        sandbox.restore()
        assert sandbox.node_id != node.node_id
        assert sandbox.run("print(x + 1)").stdout == "42\n"
        assert sandbox.files.read("notes.txt") == b"kept"
        sandbox.close()


def test_a_pool_is_not_for_other_processes(pool: Pool) -> None:
    with pytest.raises(TypeError, match="belongs to the process"):
        ray.put(pool)


def test_a_save_needs_an_absolute_path(pool: Pool) -> None:
    with pytest.raises(BadRequestError, match="relative"):
        pool.sandbox(save="a.nsmsave")
    with pool.sandbox() as sandbox, pytest.raises(BadRequestError, match="no file for saves"):
        sandbox.save()


def test_a_killed_supervisor_keeps_its_sessions(pool: Pool) -> None:
    """The holder has them, and a call finds the next supervisor."""
    with pool.sandbox() as sandbox:
        sandbox.run("x = 42")
        os.kill(pool.nodes()[sandbox.node_id]["pid"], signal.SIGKILL)
        assert sandbox.run("print(x)").stdout == "42\n"
    assert pool.run("print(1)").stdout == "1\n"


def test_a_killed_actor_is_replaced(nodes: list[Any]) -> None:
    with Pool() as pool:
        with pool.sandbox() as sandbox:
            facts = pool.nodes()[sandbox.node_id]
            os.kill(facts["process"], signal.SIGKILL)
            with pytest.raises(SessionEndedError):
                sandbox.run("1")
            collect(facts["pid"])
        outputs = [result.stdout for result in pool.map(["print(1)"] * 30)]
        assert outputs == ["1\n"] * 30


def test_a_program_whose_node_goes_each_time(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_retries", -1)
    with pytest.raises(NodeLostError):
        pool.run("print(1)")


def test_an_environment_is_built_once_and_shipped(world: World, nodes: list[Any]) -> None:
    world.index.add_project("demo", "1.0")
    with Pool(environments={"science": {"pip": ["demo"], "preload": ["demo"]}}) as pool:
        results = list(pool.map(["import demo; print(demo.version)"] * 40, env="science", group=1))
        assert {result.stdout for result in results} == {"1.0\n"}
        used = len(pool.nodes())
    stored = [path.name for path in world.directory.glob("*/nsm/envs/*") if path.name[0] != "."]
    assert len(stored) == used
    assert len(set(stored)) == 1
    written = world.directory.glob("*/nsm/envs/*/environment.json")
    assert len({int(path.stat().st_mtime) for path in written}) == 1, "another node built it, too"


def test_an_environment_that_cannot_be_built(nodes: list[Any]) -> None:
    with pytest.raises(nsm.NsmError, match=r"science.*cannot be made"):
        Pool(environments={"science": {"pip": ["no-such-package"]}})


IMAGE = {"image": "docker-archive:/none-such.tar", "language": "python"}


@pytest.mark.parametrize(
    "settings",
    [
        {"environments": {"web": IMAGE}},
        {"config": {"environments": {"web": {"image": IMAGE["image"]}}}},
        {"config": {"environments": {"web": {"flake": "/none-such#web"}}}},
    ],
    ids=["image", "configured-image", "nix"],
)
def test_an_environment_that_a_node_cannot_provide(
    nodes: list[Any], settings: dict[str, Any]
) -> None:
    """The name and what works on all nodes are in the refusal, before code runs."""
    with pytest.raises(EnvironmentUnavailableError, match="'web' cannot be made on ") as caught:
        Pool(**settings)
    assert "`Pool(environments={'web': {'pip': [...]}})`" in (caught.value.hint or "")


def test_configuration_of_the_supervisors(nodes: list[Any]) -> None:
    config = {"environments": {"small": {"preset": "python", "env": {"GIVEN": 'a "word"'}}}}
    with Pool(config=config) as pool:
        code = "import os; print(os.environ['GIVEN'])"
        assert pool.run(code, env="small").stdout == 'a "word"\n'
    with pytest.raises(NotRunningError, match="max_sparse"):
        Pool(config={"pool": {"max_sparse": 4}})


def test_nothing_is_left(nodes: list[Any]) -> None:
    with Pool() as pool:
        sandbox = pool.sandbox()
        sandbox.run("1")
        facts = list(pool.nodes().values())
    for each in facts:
        collect(each["pid"])
        assert not os.path.exists(os.path.dirname(each["socket"]))
    pool.close()
    sandbox.close()
    with pytest.raises(NotRunningError, match="closed"):
        pool.run("1")


def test_without_a_cluster_or_the_resource(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", list)
    with pytest.raises(NotRunningError, match="nsm_sessions"):
        Pool()
    monkeypatch.setattr(ray, "is_initialized", bool)
    with pytest.raises(NotRunningError, match=r"ray\.init"):
        Pool()


# The page


@pytest.fixture
def connected(nodes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.init` of an example has been called."""
    monkeypatch.setattr(ray, "init", lambda **_: None)


def test_the_examples_of_the_page(
    connected: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for example in framework_pages.examples("ray", "remote-hosts.md"):
        scope: dict[str, Any] = {}
        expected = framework_pages.prints(example)
        exec(example, scope)
        if "passes_tests" in scope:
            as_trl_calls_it(scope["passes_tests"])
            scope["pool"].close()
        assert capsys.readouterr().out == expected


def as_trl_calls_it(reward: Any) -> None:
    """Conversations, all columns of the data set, and what TRL adds."""
    code = "```python\ndef double(x):\n    return 2 * x\n```"
    rewards = reward(
        prompts=[[{"role": "user", "content": "double"}]] * 4,
        completions=[
            [{"role": "assistant", "content": text}]
            for text in (
                code,
                f"First:\n{code}\nBetter: ```\nimport os; os._exit(0)\n```",
                "",
                "```",
            )
        ],
        completion_ids=[[1, 2], [3], [], [4]],
        tests=["assert double(2) == 4"] * 4,
        difficulty=["easy"] * 4,
        trainer_state=None,
    )
    assert rewards == [1.0, 0.0, 0.0, 0.0]
