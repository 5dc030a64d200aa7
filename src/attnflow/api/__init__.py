"""The friendly functions: everything between a model and an answer in one call."""

from attnflow.api.one_call import explain, explain_completion, generate

__all__ = ["explain", "explain_completion", "generate"]
