"""Audit log: who ran which code, when, in which session, with which result. Lines are only
appended.

audit_file  one file: appended to, rotated, private
journal     a bounded queue of lines, written by a thread
recorder    events as lines
"""

from nsmd.audit.journal import Journal, open_journal
from nsmd.audit.recorder import RECORDED, Recorder

__all__ = ["RECORDED", "Journal", "Recorder", "open_journal"]
