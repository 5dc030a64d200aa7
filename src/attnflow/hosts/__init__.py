"""A model to what it did: capture, loading, checking, and one adapter for each host library."""
