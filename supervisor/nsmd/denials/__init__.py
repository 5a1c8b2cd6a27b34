"""Rule of its jail that stopped code, explained in one line; nothing where no rule did.

What programs print is no proof: a file may quote the same words, a test may raise them. A text
counts only where failing programs write, in the form in which they write it, if the code does not
contain it, and if it agrees with the policy.

evidence    kinds of evidence that a text gives
lines       what Node and most programs say when they fail, a line at a time
tracebacks  what Python says when it fails
reading     which of an execution's texts count
naming      texts from outside, on one line
packages    sentences about missing packages
wording     what the policy says about the evidence
explaining  all of it together: `explain`
"""

from nsmd.denials.explaining import Circumstances, explain
from nsmd.denials.reading import looks_suspicious

__all__ = ["Circumstances", "explain", "looks_suspicious"]
