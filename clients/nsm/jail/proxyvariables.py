"""The variables by which programs in a jail find its proxy; pure.

Where they come from: curl reads `http_proxy` in lower case only and the others in both, Python,
git and npm read both, Go and Rust programs either; Node reads them where it is told to.
"""

from __future__ import annotations

PROXY_PORT = 3128
"""In the jail's own network, where nobody else listens when it starts; what proxies use."""

URL = "http://127.0.0.1:{port}"

DIRECT = "localhost,127.0.0.1,::1"
"""Servers of the jail's own are reached without proxy. No other address and no suffix is in
here: nothing outside can be reached but through it."""

_PROMPT = "GIT_TERMINAL_PROMPT"


def variables_with_port() -> dict[str, str]:
    """Names and values of sessions' proxy variables; `{port}` stands for the proxy's port.

    `ALL_PROXY` is an HTTP proxy like the others: clients without a SOCKS library fail at `socks5://`
    even if they would not use it (httpx). The same port takes SOCKS 5 from who wants it.
    """
    both = {"HTTP_PROXY": URL, "HTTPS_PROXY": URL, "ALL_PROXY": URL, "NO_PROXY": DIRECT}
    return {
        **both,
        **{name.lower(): value for name, value in both.items()},
        # Node 22.21, 24 and newer; older ones have no such thing.
        "NODE_USE_ENV_PROXY": "1",
        # npm takes the others, too; these go before a `.npmrc` of the project.
        "npm_config_proxy": URL,
        "npm_config_https_proxy": URL,
        "npm_config_noproxy": DIRECT,
        # A question for a new version is one more host, which would be refused and said.
        "npm_config_update_notifier": "false",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # What is refused stays refused, and neither says anything while it tries again.
        "PIP_RETRIES": "1",
        "npm_config_fetch_retries": "1",
        "npm_config_fetch_retry_mintimeout": "500",
        # Nobody is there to type a password.
        _PROMPT: "0",
    }


def with_port(port: int) -> dict[str, str]:
    """Proxy variables of sessions whose proxy is on this port of their loopback."""
    return {
        name: value.replace("{port}", str(port)) for name, value in variables_with_port().items()
    }


def of_a_box(port: int) -> dict[str, str]:
    """Proxy variables of a box whose proxy is on this port of its loopback. A person sits there, so
    programs may prompt.
    """
    return {name: value for name, value in with_port(port).items() if name != _PROMPT}


TRUST_VARIABLES = (
    "AWS_CA_BUNDLE",
    "CARGO_HTTP_CAINFO",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
    "NIX_SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_FILE",  # OpenSSL, Python, Go, Ruby, uv
    "npm_config_cafile",
)
"""Variables by which programs find the certificates that they trust, in one file."""


def java_options(before: str, port: str = "{port}", *, trusted: str = "") -> str:
    """Options of every JVM: those before, the proxy, since Java reads no variable for it, and
    perhaps the file of `trust_variables`, as `trusted`; `.jks` beside it has the same for Java.
    """
    options = [before] if before else []
    for scheme in ("https", "http"):
        options += [f"-D{scheme}.proxyHost=127.0.0.1", f"-D{scheme}.proxyPort={port}"]
    if trusted:
        options.append(f"-Djavax.net.ssl.trustStore={trusted}.jks")
    return " ".join(options)


def trust_variables(file: str) -> dict[str, str]:
    """Names and values of the variables by which programs trust the certificates in a file."""
    return dict.fromkeys(TRUST_VARIABLES, file)


WITHOUT_NETWORK = (("PIP_RETRIES", "0"), ("npm_config_fetch_retries", "0"))
"""Variables that keep pip and npm from retrying without a network, for 15 s and for a minute or
two.
"""
