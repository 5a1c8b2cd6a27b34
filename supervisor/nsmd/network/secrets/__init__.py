"""Secrets that never enter a session or box. No module imports a later one.

Code gets stand-ins. A helper, a process for each session or box with secrets or rules for requests,
refuses requests that no rule allows. It puts the values into the headers of requests to the hosts
that they are for, and stand-ins into what comes back
(docs/explanation/decisions/0034-a-helper-has-the-value.md). Only helpers import what speaks TLS.
This module imports nothing, since helpers import it.

stand_ins     stand-ins: made, found in requests, and replaced there
redaction     in a helper: values in responses, replaced by stand-ins
vault         in a helper: the values of one session or box, and the process that reads them
authority     in a helper: its certificate authority
host_rules    in a helper: rules for requests to one host, and for its responses
interception  in a helper: one connection, TLS on both sides and HTTP/1.1 in between
helper        in a helper: its messages
grant         the secrets of one session or box
service       all secrets
"""
