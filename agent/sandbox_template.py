"""Forks sessions from one Python that is up already; runs as a long-lived process in a jail.

It starts an interpreter, imports what code usually imports, and then does nothing but fork. Each
fork gives itself namespaces, file systems and limits of its own, drops every privilege, and becomes
an agent (`sandbox_agent.serve`). Code of users runs only in there, never in this process.

The package `sandbox.template` has its parts. Both travel into a jail as one file.
The control socket is descriptor 0, SOCK_SEQPACKET. Its messages are in
docs/contributing/agent-protocol.md, "Templates". End-of-file on it ends this process, not the
sessions.

Runs on Python 3.9 and newer, standard library only. The jail must allow nested user namespaces, and
nothing may be mounted over /proc or below it, else the kernel refuses a fork its own /proc.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # unbundled

from sandbox.linux import with_pipes
from sandbox.template.image_python import enter_own_user_namespace, keep_image_python
from sandbox.template.kernel import Filter, SetupError
from sandbox.template.preloading import UnforkableError, collect_fork_hooks, empty_scratch, preload
from sandbox.template.server import TemplateServer, read_font_lists
from sandbox.template.session import MAX_ERROR, TemplateFacts

del sys.path[0]  # unbundled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, NoReturn


def claim_control() -> socket.socket:
    """Move the control socket away from descriptor 0, which becomes /dev/null."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    return control


def load_agent(path: str) -> Any:
    """The agent's module from its file, which may be compiled whatever its name is."""
    from importlib.machinery import ModuleSpec, SourceFileLoader, SourcelessFileLoader
    from importlib.util import MAGIC_NUMBER, module_from_spec

    with open(path, "rb") as file:
        compiled = file.read(len(MAGIC_NUMBER)) == MAGIC_NUMBER
    kind = SourcelessFileLoader if compiled else SourceFileLoader
    spec = ModuleSpec("sandbox_agent", kind("sandbox_agent", path), origin=path)
    spec.has_location = True
    module = module_from_spec(spec)
    # Not into sys.modules: code in sessions has no use for it.
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def restart_without(control: socket.socket, unforkable: UnforkableError, failed: str) -> NoReturn:
    """Replace this process by a new one that leaves a module out, and those that, as JSON says,
    earlier processes had to leave out."""
    without = {**json.loads(failed), unforkable.module: unforkable.why}
    words = sys.argv[1:]
    if words[0] == "--failed":
        words = words[2:]
    os.dup2(control.fileno(), 0, inheritable=True)
    os.execv(
        sys.executable,
        [sys.executable, "-I", sys.argv[0], "--failed", json.dumps(without), *words],
    )


def main(arguments: Sequence[str]) -> NoReturn:
    """`template.py [--failed JSON] [--host-network] [--image JSON] AGENT FILTER [MODULE ...]`:
    paths of the agent and the filter, and what to preload. `--image` has `program`, the Python of
    an image, which preloads in place of this one, and `root`, as in a request, or null. `--failed`
    is for this program itself: modules to leave out, and why."""
    control = claim_control()
    try:
        failed = "{}"
        if arguments[0] == "--failed":
            _, failed, *arguments = arguments
        host_network = arguments[0] == "--host-network"
        if host_network:
            arguments = arguments[1:]
        image: Mapping[str, Any] = {}
        if arguments[0] == "--image":
            image = json.loads(arguments[1])
            arguments = arguments[2:]
            enter_own_user_namespace()
        agent_path, filter_path, *wanted = arguments
        with open(filter_path, "rb") as file:
            system_calls = Filter(file.read())
        without: Mapping[str, str] = json.loads(failed)
        try:
            with collect_fork_hooks() as hooks:
                here = [name for name in wanted if name not in without and not image]
                now, imported = preload(here)
        except UnforkableError as error:
            restart_without(control, error, failed)
        failures = {**without, **now}
        # After the others, so that what each fork uses lies together in memory.
        agent = load_agent(agent_path)
        template = TemplateFacts(agent, system_calls, host_network=host_network)
        template.worker = with_pipes(lambda: agent.PythonWorker(hooks))
        server = TemplateServer(control, template)
        server.failed = {name: failures[name] for name in wanted if name in failures}
        server.imported = imported
        if image:
            kept = keep_image_python(image, template, wanted, control)
            server.failed, server.imported = kept
        template.font_lists = read_font_lists()
        template.directories = empty_scratch()
        server.lists_fonts = not image
        session, fd, own, group = server.serve()
    except Exception as error:
        text = str(error) if isinstance(error, SetupError) else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            control.send(json.dumps({"ready": False, "error": text[:MAX_ERROR]}).encode())
        sys.exit(text)
    session.become(fd, own, group)


if __name__ == "__main__":
    main(sys.argv[1:])
