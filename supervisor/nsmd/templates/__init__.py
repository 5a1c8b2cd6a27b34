"""Sessions as forks of a Python that is up already. A map; no module imports a later one.

spec        which template a session is a fork of, and what is asked of it
freshness   changes of the files that a template was made of
template    one template: its jail, its control socket, its forks
keeping     what is kept of templates, and how they are taken up
launcher    all templates; falls back to a jail per session where forking does not work
"""

from nsmd.templates.launcher import TemplateLauncher, open_launcher, open_templates

__all__ = ["TemplateLauncher", "open_launcher", "open_templates"]
