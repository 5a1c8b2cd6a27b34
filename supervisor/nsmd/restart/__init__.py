"""Sessions that outlive the supervisor, and the end of a supervisor.

session_store   hand each session's descriptors and record to the descriptor store
unread          sessions that this version of nsm cannot read
load            read what an earlier supervisor left in the store
ended_sessions  how sessions ended, for the next call with their name; files for the next supervisor
reattach        continue the sessions that were left, and their executions
drain           begin nothing new, and wait until nothing runs
"""
