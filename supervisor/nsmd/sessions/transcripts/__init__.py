"""Transcripts of sessions, for people to read: bounded, in memory, gone with the supervisor.

live        output of the running execution, for readers of any speed
record      one execution, or one note about a job
transcript  one session's executions and jobs, and their readers
store       the transcripts of all sessions, live and ended
"""

from nsmd.sessions.transcripts.store import TranscriptStore
from nsmd.sessions.transcripts.transcript import Subject, Transcript, TranscriptReader

__all__ = ["Subject", "Transcript", "TranscriptReader", "TranscriptStore"]
