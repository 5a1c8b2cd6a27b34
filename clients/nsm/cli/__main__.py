"""`python -m nsm.cli`."""

from __future__ import annotations

from nsm.cli.entry import program

program()
