"""Explanations of the jail's rule that stopped code, in one line; nothing if no rule did.

The output of programs is no proof: a file may quote the same words, a test may raise them. A text
counts only if it is where failing programs write, has the form of their messages, does not appear
in the code, and agrees with the policy.

suspicion   choice of the outcomes that need an explanation
messages    messages of failing programs, line by line, and the evidence in them
tracebacks  messages of failing Python
wording     sentences about the policy's rule for the evidence
explaining  choice of the texts of an execution that count, and all of it together: `explain`

Most code breaks no rule. So only `suspicion` is imported at the start. The others are imported when
an outcome first looks suspicious.
"""
