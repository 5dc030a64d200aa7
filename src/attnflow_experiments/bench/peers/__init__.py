"""Peers: other people's packages, each in a process and an environment of its own."""
