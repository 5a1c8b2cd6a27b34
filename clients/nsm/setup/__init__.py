"""`nsm setup`: nsm's MCP entry, skill and permission in the files of coding agents.

agents.py       the agents: their files, and what goes where
plan.py         the files as they are and as they should be, and back
document.py     a configuration file: its text, and what it means
record.py       what was changed, kept for `--undo`
files.py        reading and replacing files that are the user's
json_text.py    JSON with comments, changed by position
toml_text.py    TOML, likewise
skill/          the skill that is copied
"""
