"""systemd of the user, for `nsm service`.

units.py          units of nsm
user_manager.py   `systemctl --user`, as far as it is needed; lingering
"""
