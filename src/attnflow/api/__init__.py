"""The friendly functions: everything between a model and an answer in one call."""

from attnflow.api.answer import Answer, ask
from attnflow.api.completions import explain_completion, generate
from attnflow.api.one_call import explain

__all__ = ["Answer", "ask", "explain", "explain_completion", "generate"]
