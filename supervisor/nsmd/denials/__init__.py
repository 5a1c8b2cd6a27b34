"""Which rule of its jail stopped code, in one line, and nothing where none did.

evidence     what programs say when a rule stops them: kinds, and words that are none
lines        what Node and most programs say, a line at a time
tracebacks   what Python says
reading      which of an execution's texts count
naming       texts from outside on one line
packages     what is said of packages that are not there
wording      what the policy says to all of that
explaining   all of it together: `explain`

What programs print is no proof: the same words may be quoted from a file or thrown by a test. So a
text counts only in the form in which a failing program says it, where failing programs write, if
the code itself does not contain it, and if it agrees with the policy.
"""

from nsmd.denials.explaining import Circumstances, explain
from nsmd.denials.reading import looks_suspicious

__all__ = ["Circumstances", "explain", "looks_suspicious"]
