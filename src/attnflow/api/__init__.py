"""The friendly functions: everything between a model and an answer in one call."""

from attnflow.api.answer import Answer, ask
from attnflow.api.one_call import explain, explain_completion, generate

__all__ = ["Answer", "ask", "explain", "explain_completion", "generate"]
