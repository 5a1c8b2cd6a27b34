"""Output as it comes. Pure.

live_output.py      streamed output and the final text: every byte once, in order; the same for
                    programs of the bridge, line by line
resumed_transcript.py   a transcript over several connections: each entry once
escapes.py          what jailed programs print, made safe for a terminal
"""
