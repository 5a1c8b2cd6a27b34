"""Processes between the supervisor and a program of the host. Each ends all that its program
started.

A program's children can leave its process group and its session. Only a subreaper
(PR_SET_CHILD_SUBREAPER(2const)) still sees all of them. It is a process of its own because it must
outlive a supervisor that is killed, until it has ended them.

process_tree  in the monitor: the processes below it, and how they are ended
monitor       in the monitor: its loop, and the common part of reports
monitored     in the supervisor: one monitor, held by a pipe, and its reports
"""
