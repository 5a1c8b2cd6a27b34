"""All sessions of the supervisor, and the one way to run code.

session_index    live sessions by id and by name, and rows of `nsm ps`
session_slots    limit of live sessions, and calls that wait for a place
run_requests     what a request means: its code, environment, and whether it ran already
projects         the host directory that a session may see, and its mount point
session_manager  start, find, keep and end sessions
automatic_saves  saves of sessions that have become idle
run_service      the one way to run code: checks, session, execution, result; forks
jobs             programs beside the interpreter of a session, and their start
"""
