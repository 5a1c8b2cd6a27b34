"""The one place that holds the version of the distribution."""

__version__ = "0.1.0"
