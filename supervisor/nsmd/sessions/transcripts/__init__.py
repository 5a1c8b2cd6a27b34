"""Transcripts of sessions, for people to read: bounded, in memory, gone with the supervisor.

record      one execution with its output, or one note about a job
transcript  one session's executions and jobs, their readers, and the transcripts of all sessions
"""

from nsmd.sessions.transcripts.transcript import (
    Subject,
    Transcript,
    TranscriptReader,
    TranscriptStore,
)

__all__ = ["Subject", "Transcript", "TranscriptReader", "TranscriptStore"]
