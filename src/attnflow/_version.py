"""The version, in one place: read by the build, the package and every saved file's provenance."""

__version__ = "0.3.0"
