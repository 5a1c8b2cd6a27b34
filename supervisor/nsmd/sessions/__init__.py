"""One session, from the start of its jail to its end. No module imports a later one.

transcripts      what sessions have run, kept in memory for people to read
agent_session    one jail and its agent, from the start to the last process
idle             when a session ends because nobody uses it, or because it is too old
execution        one execution: its state, output and result
execution_queue  the executions of one jail, one after another; their time limits
session          the task that owns one jail and carries out the lifecycle table
ended            ended sessions and finished executions that are still remembered
files            files into and out of a session
changes          what a session has changed in a copied project: diff, apply, discard
"""
