"""Sessions as forks of a Python that is already running. No module imports a later one.

spec            which template a session is a fork of, and what is asked of it (pure)
freshness       changes of the files that a template was made of
template        one template: its jail, its control socket, its forks
template_store  what is kept of templates for the next supervisor
launcher        all templates; a jail of its own where forking does not work
"""

from nsmd.jail.templates.launcher import TemplateLauncher, open_launcher, open_templates

__all__ = ["TemplateLauncher", "open_launcher", "open_templates"]
