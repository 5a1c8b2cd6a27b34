"""Sessions that outlive the supervisor, and the end of a supervisor.

kept_sessions     hand sessions to the descriptor store, and read what an earlier supervisor left
ended_sessions    how sessions ended, for the next call with their name, also after a restart
reattach          continue the sessions that were left, and their executions
drain             begin nothing new, and wait until nothing runs
"""
