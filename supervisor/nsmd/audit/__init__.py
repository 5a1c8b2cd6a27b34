"""Audit log: who ran which code, when, in which session, with which result. Lines are only
appended.

journal   files: appended to by a thread, rotated, private
recorder  events as lines
"""

from nsmd.audit.journal import Journal, open_journal
from nsmd.audit.recorder import RECORDED, Recorder

__all__ = ["RECORDED", "Journal", "Recorder", "open_journal"]
