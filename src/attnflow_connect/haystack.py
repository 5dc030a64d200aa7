"""Haystack: a component that cites replies, in the place of an AnswerBuilder.

>>> from attnflow.testing import tiny_decoder
>>> citer = AttnflowAnswerBuilder(tiny_decoder(), {"max_new_tokens": 3})
>>> (answer,) = citer.run("the keys", [Document(content="the keys .")])["answers"]
>>> answer.query, len(answer.documents)
('the keys', 1)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, GeneratedAnswer, component, default_to_dict
from haystack.dataclasses import ChatMessage

from attnflow.errors import InputError, shorten
from attnflow_connect.frameworks import ask_alone, framework_documents


@component
class AttnflowAnswerBuilder:
    """Make answers of a query, its documents and the replies of any generator.

    Without replies the model here answers. A document's meta says with "referenced" if the answer
    rests on it; the answer's meta has "citations", the full records.

    model: as `attnflow.load` takes it; None is SmolLM2. options: for `attnflow.ask`.
    """

    def __init__(self, model: Any = None, options: dict[str, Any] | None = None) -> None:
        self.model, self.options = model, options or {}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for the file of a pipeline."""
        if self.model is not None and not isinstance(self.model, str):
            raise InputError(
                "A pipeline's file names its model: give a name or a folder; got "
                f"{shorten(self.model)}."
            )
        return default_to_dict(self, model=self.model, options=self.options)

    @component.output_types(answers=list[GeneratedAnswer])
    def run(
        self,
        query: str,
        documents: list[Document],
        replies: list[str] | list[ChatMessage] | None = None,
    ) -> dict[str, list[GeneratedAnswer]]:
        """Return an answer for each reply, or the model's own."""
        return {"answers": [self._answer(query, documents, each) for each in replies or (None,)]}

    def _answer(
        self, query: str, documents: list[Document], reply: str | ChatMessage | None
    ) -> GeneratedAnswer:
        text = reply.text if isinstance(reply, ChatMessage) else reply
        meta = dict(reply.meta) if isinstance(reply, ChatMessage) else {}
        texts = framework_documents((each.content or "", each.meta) for each in documents)
        answer = ask_alone(self.model, query, texts, answer=text, **self.options)
        cited = {citation.document_index for citation in answer.citations}
        copies = [
            replace(each, meta={**each.meta, "source_index": k + 1, "referenced": k in cited})
            for k, each in enumerate(documents)
        ]
        records = [citation.to_dict() for citation in answer.citations]
        return GeneratedAnswer(answer.text, query, copies, {**meta, "citations": records})
