"""Explanations of the jail's rule that stopped code, in one line; nothing if no rule did.

The output of programs is no proof: a file may quote the same words, a test may raise them. A text
counts only if it is where failing programs write, has the form of their messages, does not appear
in the code, and agrees with the policy.

suspicion   choice of the outcomes that need an explanation
evidence    kinds of evidence that a text gives
lines       messages of failing programs and of Node, line by line
tracebacks  messages of failing Python
reading     choice of the texts of an execution that count
naming      texts from outside, on one line
gpus        messages and sentences about GPUs
packages    sentences about missing packages
wording     sentences about the policy's rule for the evidence
explaining  all of it together: `explain`

Most code breaks no rule. So only `suspicion` is imported at the start. The others are imported when
an outcome first looks suspicious.
"""
