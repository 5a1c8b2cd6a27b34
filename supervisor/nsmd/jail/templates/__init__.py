"""Sessions as forks of a Python that is already running. No module imports a later one.

spec            choice of the template for a session, and the request to it (pure)
freshness       changes of the files that a template consists of
fork            one fork, from the request to the first byte of its agent
template        one template: its jail, its control socket, its forks
template_store  stored templates, for the next supervisor
launcher        all templates; a jail of its own if forking does not work
opening         the launcher of a supervisor
"""

from nsmd.jail.templates.launcher import TemplateLauncher, TemplateTrial
from nsmd.jail.templates.opening import open_launcher, open_templates
from nsmd.jail.templates.template import Template
from nsmd.jail.templates.template_store import read_programs

__all__ = [
    "Template",
    "TemplateLauncher",
    "TemplateTrial",
    "open_launcher",
    "open_templates",
    "read_programs",
]
