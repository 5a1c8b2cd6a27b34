"""Commands that log and report how far they are, for the supervisor.

Nothing is imported here: the monitor must start in the time of an empty Python.

log_text  lines of a log, cleaned for people, the progress that it tells, and its readers' interface
monitor   a process that reads a command's log, and ends the command with all that it started
runner    start the monitor, and return the result
"""
