"""HTTP proxy through which a build reaches the user's indexes.

The jail of a build speaks plain HTTP with this proxy, which runs outside. The proxy speaks TLS with
the indexes and adds the user's credentials, so the jail never has them. No module imports a later
one.

errors          requests that are refused or have failed
proxy_urls      URLs of the proxy
rules           rules on what a build may fetch
variables       variables for uv, npm and py-rattler in a jail
known_indexes   the user's indexes as jails name them
connecting      connections to checked addresses
fetching        requests to indexes: TLS, credentials, redirects
page_reading    pages of indexes, read with a bound
page_rewriting  pages of indexes, rewritten with links to the proxy
connection      one connection from the jail
handler         handler of a jail's requests
proxy           the proxy of one build
"""
