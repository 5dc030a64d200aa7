"""LlamaIndex: a query engine whose citations come from the model's own computation.

It stands where a CitationQueryEngine does, which asks the model to write numbers of sources and
believes them.

>>> from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
>>> from attnflow.testing import tiny_decoder
>>> nodes = [NodeWithScore(node=TextNode(text="the keys to the cabinets ."))]
>>> engine = AttnflowQueryEngine(None, tiny_decoder(), max_new_tokens=3)
>>> response = engine.synthesize(QueryBundle("the keys"), nodes)
>>> len(response.source_nodes), list(response.metadata)
(1, ['citations', 'attnflow'])
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import CitationBlock, TextBlock
from llama_index.core.base.response.schema import Response
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.response_synthesizers import BaseSynthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle

from attnflow.attribution.passages import Citation
from attnflow_connect.frameworks import ask_alone, framework_documents

_NO_NODES = "Empty Response"  # what LlamaIndex's own engines answer
_PLACES = ("start", "end", "document_index", "cited_start", "cited_end")


class AttnflowQueryEngine(BaseQueryEngine):
    """Retrieve nodes, answer from them, and cite them.

    model: as `attnflow.load` takes it; None is SmolLM2. It answers, or reads what the
    response_synthesizer (any LlamaIndex LLM) has answered. options: for `attnflow.ask`.

    `response.metadata["citations"]` are CitationBlocks, whose `source` is the id of a node;
    `response.metadata["attnflow"]` are the full records.
    """

    def __init__(
        self,
        retriever: BaseRetriever | None,
        model: Any = None,
        *,
        response_synthesizer: BaseSynthesizer | None = None,
        node_postprocessors: Sequence[BaseNodePostprocessor] = (),
        **options: Any,
    ) -> None:
        super().__init__(callback_manager=None)
        self.retriever, self.model, self.options = retriever, model, options
        self.response_synthesizer = response_synthesizer
        self.node_postprocessors = node_postprocessors

    def _get_prompt_modules(self) -> dict[str, Any]:
        writer = self.response_synthesizer
        return {} if writer is None else {"response_synthesizer": writer}

    def retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the nodes for a query."""
        if self.retriever is None:
            return super().retrieve(query_bundle)
        nodes = self.retriever.retrieve(query_bundle)
        for each in self.node_postprocessors:
            nodes = each.postprocess_nodes(nodes, query_bundle=query_bundle)
        return nodes

    def synthesize(
        self,
        query_bundle: QueryBundle,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
    ) -> Response:
        """Return the answer to a query from these nodes, with its citations."""
        if not nodes:
            return Response(_NO_NODES)
        text = None
        if self.response_synthesizer is not None:
            text = str(self.response_synthesizer.synthesize(query_bundle, nodes))
        documents = framework_documents(
            (each.node.get_content(), each.node.metadata) for each in nodes
        )
        question = query_bundle.query_str
        answer = ask_alone(self.model, question, documents, answer=text, **self.options)
        return Response(
            answer.text,
            source_nodes=[*nodes, *(additional_source_nodes or ())],
            metadata={
                "citations": [_block(citation, nodes) for citation in answer.citations],
                "attnflow": [citation.to_dict() for citation in answer.citations],
            },
        )

    def _query(self, query_bundle: QueryBundle) -> Response:
        return self.synthesize(query_bundle, self.retrieve(query_bundle))

    async def asynthesize(self, *args: Any, **kwargs: Any) -> Response:
        """Return what `synthesize` does, from a thread."""
        return await asyncio.to_thread(self.synthesize, *args, **kwargs)

    async def _aquery(self, query_bundle: QueryBundle) -> Response:
        return await asyncio.to_thread(self._query, query_bundle)


def _block(citation: Citation, nodes: Sequence[NodeWithScore]) -> CitationBlock:
    return CitationBlock(
        cited_content=TextBlock(text=citation.cited_text),
        source=nodes[citation.document_index].node.node_id,
        title=citation.document,
        additional_location_info={name: getattr(citation, name) for name in _PLACES},
    )
