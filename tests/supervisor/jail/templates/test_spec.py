"""Choice of the template that a session is forked from, without any."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from nsm.jail.proxyvariables import WITHOUT_NETWORK
from nsmd.jail.templates.spec import request_for, template_of, why_unforkable
from nsmd.model.limits import steps_of
from nsmd.model.policy import limit_variables, policy_of
from nsmd.model.values import (
    Environment,
    ImageRoot,
    JailSizes,
    JailSpec,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
    SetupStep,
)

PYTHON = Environment(
    name="python",
    interpreter="python",
    agent_python="/usr/bin/python3",
    program="/usr/bin/python3",
)


def project(mount_point: str = "/project", inode: int = 1) -> ProjectMount:
    return ProjectMount(path="/home/u/p", mount_point=mount_point, device=1, inode=inode)


def spec(environment: Environment = PYTHON, mount: ProjectMount | None = None) -> JailSpec:
    return JailSpec(environment=environment, project=mount, sizes=JailSizes())


def with_bind(path: str) -> Environment:
    return replace(PYTHON, binds=(ReadOnlyBind(source=path, target=path),))


def image(*, writable: bool = False, **settings: Any) -> Environment:
    shown = ImageRoot(directory="/store/root", python=("/run/nsm/ld", "py"), writable=writable)
    return replace(PYTHON, name="web", image=shown, **settings)


def test_the_python_of_an_image_imports_beside_its_template() -> None:
    web = image(preload=("numpy",), setup=(SetupStep(name="first", code="1"),))
    template = template_of(spec(web))
    assert (template.worker, template.preload) == (web.program, ("numpy",))
    bash = template_of(spec(replace(web, interpreter="bash", program="/bin/bash")))
    assert (bash.worker, bash.preload) == ("", ())
    first, imports = steps_of(web)
    assert first == web.setup[0]
    assert "numpy" in imports.code
    assert steps_of(replace(web, interpreter="bash")) == web.setup


def asked(wanted: JailSpec, limits: SessionLimits) -> bytes:
    return request_for(wanted, limits, policy_of(wanted, limits, "forked"))


def test_variables_are_a_session_s_own() -> None:
    secret = replace(PYTHON, variables=(("KEY", "k3y"),))
    assert template_of(spec(secret)) == template_of(spec())
    assert "k3y" not in repr(spec(secret))
    common, policy, *variables = asked(spec(secret), SessionLimits()).decode().split("\0")
    network = [f"{name}={value}" for name, value in WITHOUT_NETWORK]
    limits = [f"{name}={value}" for name, value in limit_variables(PYTHON.memory_mb).items()]
    assert sorted(variables) == sorted(["KEY=k3y", *network, *limits])
    assert "k3y" not in common
    assert "k3y" not in policy
    assert json.loads(common)["prestart"] == "python"
    assert spec(secret) != spec(replace(secret, variables=(("KEY", "other"),)))
    large = replace(PYTHON, variables=(("KEY", "x" * 40_000),))
    assert "variables" in str(why_unforkable(spec(large)))


def test_what_a_session_s_own_file_systems_would_cover() -> None:
    assert "/workspace" in str(why_unforkable(spec(mount=project("/workspace/p"))))
    assert "/tmp" in str(why_unforkable(spec(with_bind("/tmp/py"))))
    assert why_unforkable(spec(with_bind("/tmpfiles"))) is None


def test_an_interpreter_of_the_project_is_not_for_a_template() -> None:
    mount = project("/home/u/p")
    assert "part of the project" in str(why_unforkable(spec(with_bind("/home/u/p/.venv"), mount)))


def test_an_interpreter_of_the_project_is_no_part_of_the_template() -> None:
    program = "/project/.venv/bin/python"
    links = (("/home/u/p", "/project"),)
    own = replace(PYTHON, program=program, links=links)
    assert why_unforkable(spec(own, project())) is None
    assert program not in repr(template_of(spec(own, project())))
    in_tmp = replace(own, links=(("/tmp/p", "/project"),))
    assert "/tmp/p is shown below /tmp" in str(why_unforkable(spec(in_tmp, project())))
