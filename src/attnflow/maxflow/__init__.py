"""Maximum flow from a target down to a source: the number behind attention flow.

`reference` solves one pair at a time with scipy: slow, small, and not written by us; every other
solver is held against it.
"""
