"""`python -m nsm.cli`."""

from __future__ import annotations

from nsm.cli.main import program

program()
