"""Processes between the supervisor and a program of the host, which end all that it started.

A program's own children leave its process group and its session as they like. Only a subreaper
(PR_SET_CHILD_SUBREAPER(2const)) sees all of them again, and it is a process of its own since it
outlives a supervisor that is killed, by as long as it takes to end them.

below    in such a process: what is below it, and its end
held     in the supervisor: one such process, held by a pipe, and what it reports
"""
