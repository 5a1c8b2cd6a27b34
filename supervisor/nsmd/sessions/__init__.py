"""One session, from the start of its jail to its end. No module imports a later one.

transcripts      records of what sessions ran, kept in memory for people
agent_session    one jail and its agent, from the start to the last process
execution        one execution: its state, output and result; the finished ones
execution_queue  the executions of one jail, one after another; their input and time limits
fresh            programs that each get a fresh interpreter, and the runners that run them
session          the task that owns one jail and carries out the lifecycle table
forking          copies of a session that runs
files            files into and out of a session, and paths that clients watch
changes          changes of a session in an overlay: diff, apply, discard
"""
