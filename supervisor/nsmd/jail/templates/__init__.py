"""Sessions as forks of a Python that is already running. No module imports a later one.

spec      choice of the template for a session, the request to it, its files
template  one template: its jail, its control socket, its forks, its record for the next supervisor
launcher  all templates; a jail of its own if forking does not work
"""

from nsmd.jail.templates.launcher import (
    TemplateLauncher,
    TemplateTrial,
    open_launcher,
    open_templates,
)
from nsmd.jail.templates.template import Template, read_programs

__all__ = [
    "Template",
    "TemplateLauncher",
    "TemplateTrial",
    "open_launcher",
    "open_templates",
    "read_programs",
]
