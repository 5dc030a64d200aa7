"""The models, the queue and the results behind one server, whichever door a request comes by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnflow.data import example
from attnflow.errors import TokensError
from attnflow.errors.progress import tell
from attnflow.explainers.comparison import Comparison, usual_methods
from attnflow.methods import Flow
from attnflow_connect.server.entrance import EXAMPLE, example_documents, example_view
from attnflow_connect.server.jobs import Job, Jobs, Results, StoredResult
from attnflow_connect.server.models import DEFAULT, Limits, OfferedModel
from attnflow_connect.server.requests import (
    REQUESTS,
    BaseRequest,
    method_titles,
    read_request,
)

if TYPE_CHECKING:
    from attnflow.hosts.model import Model


class Server:
    """The models, the queue and the results behind one server."""

    def __init__(self, models: Sequence[OfferedModel], limits: Limits) -> None:
        self.models = {model.name: model for model in models}
        self.limits = limits
        self.jobs = Jobs(waiting=limits.waiting)
        self.results = Results(most=limits.results)
        if example.MODEL in self.models:
            saved = Comparison((example.example_result(),))
            self.results.keep(EXAMPLE, StoredResult(saved, example_view(), generated=True))

    def submit(self, kind: type[BaseRequest], body: bytes) -> Job:
        """Read a request and put it into the queue."""
        request = read_request(body, kind, self.models, self.limits)
        return self.jobs.submit(lambda: self._carry_out(request))

    def offers(self) -> dict[str, Any]:
        """Return what the page offers: models, methods with their titles, limits and defaults."""
        titles, usual = method_titles(), [method.name for method in usual_methods(0)]
        return {
            "models": [model.to_dict() for model in self.models.values()],
            "methods": list(titles),
            "titles": titles,
            "usual": {
                kind.task: [DEFAULT] if kind.usual_tokens else [DEFAULT, *usual]
                for kind in REQUESTS
            },
            "new_tokens": {kind.task: kind.usual_tokens for kind in REQUESTS if kind.usual_tokens},
            "example": {
                "question": example.QUESTION,
                "documents": example_documents(),
            },
            "limits": {
                name: getattr(self.limits, name) for name in ("tokens", "new_tokens", "image_bytes")
            },
        }

    def _carry_out(self, request: BaseRequest) -> str:
        """Do what was asked, and keep the result with the request."""
        tell("loading the model", 0, 0)
        model = self.models[request.model].loaded
        self._check_length(model, request)
        comparison, document = request.carry_out(model)
        document["request"] = request.record()
        light = Comparison(comparison.results, comparison.graph)  # not the weights of every head
        return self.results.add(StoredResult(light, document, generated=request.usual_tokens > 0))

    def _check_length(self, model: Model, request: BaseRequest) -> None:
        """Count tokens, where the tokenizer can be asked; the embedded model checks for itself."""
        if not callable(model.tokenizer):
            return
        count = len(model.tokenizer(request.wording)["input_ids"])
        limit: int = getattr(self.limits, request.limit)
        flows = any(isinstance(method, Flow) for method in request.chosen())
        most = min(limit, self.limits.flow_tokens) if flows else limit
        if count > most:
            for_flow = " for flow" if most < limit else ""
            raise TokensError(
                f"The text has {count} tokens; this server takes up to {most}{for_flow}. Shorten "
                "it, or use attnflow in Python or on the command line, which have no such limit."
            )
