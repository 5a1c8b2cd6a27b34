"""`python -m nsmd`: how clients start the supervisor, whatever PATH they have."""

import gc
import os

_EXIT_INTERRUPTED = 130  # as in `nsmd.app.main`


def program() -> None:
    """Run `nsmd.app.main.main`; Ctrl-C while its modules are loaded ends it without a traceback."""
    gc.disable()  # nothing that is imported becomes garbage; looking for some takes a tenth
    try:
        from nsmd.app.main import main  # noqa: PLC0415  # this is what takes long

        code = main()
    except KeyboardInterrupt:
        os._exit(_EXIT_INTERRUPTED)
    raise SystemExit(code)


if __name__ == "__main__":
    program()
