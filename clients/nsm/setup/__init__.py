"""`nsm setup`: nsm's MCP entry, skill and permission in the files of coding agents.

agents.py         the agents: their files, and what goes where
plan.py           the files as they are and as they should be, and back
settings_file.py  a file of the user's: its text, what that means, and how it is replaced
record.py         what was changed, kept for `--undo`
json_text.py      JSON with comments, changed by position
toml_text.py      TOML, likewise
skill/            the skill that is copied
"""
