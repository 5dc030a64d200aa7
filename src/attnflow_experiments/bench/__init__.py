"""The bench of the field: every method, the same prompts, the same references."""
