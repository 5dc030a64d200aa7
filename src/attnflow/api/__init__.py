"""The friendly functions: everything between a model and an answer in one call."""

from attnflow.explainers.answers import Answer, ask
from attnflow.explainers.completions import explain_completion, generate
from attnflow.explainers.texts import explain

__all__ = ["Answer", "ask", "explain", "explain_completion", "generate"]
