"""Commands that log and report how far they are, for the supervisor.

Nothing is imported here: the monitor must start in the time of an empty Python.

progress  progress of a build
log_text  lines of a log, cleaned for people; and the interface of readers of logs
monitor   a process that reads a command's log, and ends the command with all that it started
runner    start the monitor, and return the result
"""
