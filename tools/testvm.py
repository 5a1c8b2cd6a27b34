"""Run a command in a fresh clone of the test machine, with this clone of nsm in it.

    python tools/testvm.py [--user ada|bob|root] COMMAND...
    python tools/testvm.py --build      only make the machine
    python tools/testvm.py --clean      remove all that was kept of machines

One argument alone is a line for the shell. Each time it is another machine, so nothing is left of
the one before.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

import guestclone
import guestimage
import guestmachine


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--user", default="ada", choices=sorted(guestclone.CLONE_OF))
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.clean:
        shutil.rmtree(guestimage.cache(), ignore_errors=True)
        return 0
    try:
        with guestmachine.guest(guestimage.image()) as guest:
            if options.build or not options.command:
                return 0
            began = time.monotonic()
            clone = guestclone.install(guest, options.user)
            guestimage.say(f"nsm is there after {time.monotonic() - began:.1f} s")
            done = guest.run(
                *options.command,
                user=options.user,
                directory=clone,
                timeout_s=options.timeout,
                watch=show,
            )
            return done.status if done.status >= 0 else 128 - done.status
    except (guestimage.CannotBuildError, guestmachine.GuestError) as error:
        print(f"test-vm: {error}", file=sys.stderr)
        return 255


def show(stream: str, data: bytes) -> None:
    out = sys.stdout if stream == "stdout" else sys.stderr
    out.buffer.write(data)
    out.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
