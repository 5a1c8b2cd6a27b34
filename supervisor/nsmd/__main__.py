"""`python -m nsmd`: how clients start the supervisor, whatever PATH they have."""

import gc
import os
import sys
from types import ModuleType

_EXIT_INTERRUPTED = 130  # as in `nsmd.app.main`


class _Unused(ModuleType):
    """A part of trio that nsm has no use for, and that trio imports: has every public name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("_"):
            raise AttributeError(name)
        return type(name, (), {})


def program() -> None:
    """Run `nsmd.app.main.main`; Ctrl-C while its modules are loaded ends it without a traceback."""
    gc.disable()  # nothing that is imported becomes garbage; looking for some takes a tenth
    for name in ("trio._dtls", "trio._ssl", "trio._highlevel_ssl_helpers"):
        sys.modules[name] = _Unused(name)  # a fifteenth of the start; TLS has processes of its own
    try:
        from nsmd.app.main import main  # noqa: PLC0415  # this is what takes long

        code = main()
    except KeyboardInterrupt:
        os._exit(_EXIT_INTERRUPTED)
    raise SystemExit(code)


if __name__ == "__main__":
    program()
