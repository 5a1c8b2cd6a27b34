"""All sessions of the supervisor, and the one way to run code.

session_index    live sessions by id and by name
session_slots    how many sessions may exist, and calls that wait for room
deduplication    run code once that a client sends again after a lost connection
projects         which host directory a session may see, and where
code_fences      remove Markdown fences around code
listing          rows of `nsm ps`
session_manager  start, find, keep and end sessions
run_service      the one way to run code: checks, session, execution, result
"""
