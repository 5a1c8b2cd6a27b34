"""Compiles the agent and the template with the Python that will run them; part of a Nix build.

compile_agent.py --check: whether this Python can; says why not.
compile_agent.py --preload MODULE...: whether it has modules; says which not.
compile_agent.py SOURCES INTERPRETER OUT: writes agent.pyc and template.pyc, made of the folder that
has sandbox_agent.py in it, and to `program` the path of INTERPRETER, as this Python or PATH has it.
"""

import importlib.util
import marshal
import os
import shutil
import sys

MINIMUM = (3, 9)


def check():
    if sys.version_info < MINIMUM:
        sys.exit("it is Python %d.%d, and 3.9 is needed" % sys.version_info[:2])
    try:
        import ctypes, fcntl, json, resource, select, socket, termios  # noqa: E401, F401
    except ImportError as error:
        sys.exit("it lacks a module of the standard library: %s" % error)


def check_preload(modules):
    missing = [module for module in modules if not is_there(module)]
    if missing:
        sys.exit(", ".join(missing))


def is_there(module):
    """Found, not imported: that is the template's to do, and may take what only a jail has."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def compiled(source, name):
    """The content of a .pyc file (PEP 552) whose time and size nobody compares."""
    code = compile(source, name, "exec", dont_inherit=True)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def main(sources, interpreter, out):
    sys.path.insert(0, sources)
    from sandbox.bundle import bundle

    for name in ("agent", "template"):
        text = bundle(os.path.join(sources, "sandbox_%s.py" % name))
        with open(os.path.join(out, name + ".pyc"), "wb") as file:
            file.write(compiled(text, "/run/nsm/%s.py" % name))
    # Exactly what this Python says of itself: an agent that runs on the environment's own Python
    # forks its interpreter instead of starting another.
    program = sys.executable if interpreter == "python3" else shutil.which(interpreter)
    if not program:
        sys.exit("there is no %s on PATH" % interpreter)
    with open(os.path.join(out, "program"), "w") as file:
        file.write(program)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        check()
    elif sys.argv[1:2] == ["--preload"]:
        check_preload(sys.argv[2:])
    else:
        main(*sys.argv[1:])
