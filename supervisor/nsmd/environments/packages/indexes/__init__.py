"""The user's indexes of packages, as pip's, uv's, npm's and conda's configuration names them.

A project's own configuration is not read: it may come from anybody, and would send builds, and
variables of the user, to hosts of its choice. No module imports a later one.

urls          URLs of indexes
values        indexes, and how they are reached
files         configuration files, read with a bound
pip_files     pip's configuration files and variables
uv_files      uv's configuration files and variables
npm_files     npm's configuration files and variables
conda_channels  conda's configuration files, and channels
netrc_logins  credentials in netrc
local_links   local directories that ``file:`` indexes lead to
reading       all of them together
"""

from nsmd.environments.packages.indexes.reading import read_indexes
from nsmd.environments.packages.indexes.values import Index, IndexAccess, Indexes

__all__ = ["Index", "IndexAccess", "Indexes", "read_indexes"]
