"""The models that ship with attnflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.errors import TokensError, shorten
from attnflow.hosts.adapter import Adapter, Batch, EmbeddingSite, Scores, Texts, TokenIds
from attnflow.hosts.blocks import Parts, watched_blocks
from attnflow.hosts.inputs import kept_positions
from attnflow.hosts.intervention import Intervention, ProjectionHooks, Session
from attnflow.hosts.recorder import Recorder
from attnflow.hosts.restore import exclusive
from attnflow.hosts.value_zeroing import VALUE_ZEROING, replayed
from attnflow.models.verb_number import Block, VerbNumberModel, VerbNumberOutput, WordVocabulary
from attnflow.tokens import Tokens
from attnflow.trace.extras import MEASURES


@dataclass(frozen=True)
class _TextBatch(Batch):
    """A batch made from texts, with the words as they were written."""

    texts: tuple[tuple[str, ...], ...] = ()


class EmbeddedAdapter(Adapter):
    """The verb-number classifier: it returns its attention when asked, so nothing is patched."""

    name = "attnflow's embedded models"
    measures = tuple(MEASURES)

    def recognises(self, model: nn.Module) -> bool:
        """Our own class."""
        return isinstance(model, VerbNumberModel)

    def encode(
        self, model: nn.Module, tokenizer: Any, texts: Texts, decoder_texts: Texts | None = None
    ) -> Batch:
        """Words to ids, padded on the right; the words travel beside them, as people wrote them."""
        if decoder_texts is not None:
            raise TokensError(
                "The embedded model is an encoder and has no decoder to give text to."
            )
        if not isinstance(tokenizer, WordVocabulary):
            raise TokensError(
                "The embedded model has words of its own: leave tokenizer out, or pass the one "
                f"that load() gives; got {shorten(tokenizer)}."
            )
        encoded = [_encode(tokenizer, text) for text in texts]
        longest = max(len(ids) for ids, _ in encoded)
        rows = [ids + [tokenizer.pad_id] * (longest - len(ids)) for ids, _ in encoded]
        lengths = torch.tensor([[len(ids)] for ids, _ in encoded])
        mask = (torch.arange(longest)[None] < lengths).long()
        return _TextBatch(
            {"input_ids": torch.tensor(rows), "attention_mask": mask},
            size=len(texts),
            positions=kept_positions(mask),
            texts=tuple(tuple(words) for _, words in encoded),
        )

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """Return the user's own words: an unknown one is shown as written, not as its class."""
        if isinstance(batch, _TextBatch):
            return Tokens(batch.texts[example])
        return super().name_positions(model, tokenizer, batch, example, length)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """Use the model's own switch for attention; watch its blocks where they are measured."""
        if set(recorder.record) & set(self.measures):
            with _measured(cast(VerbNumberModel, model), recorder):
                return self.forward(model, inputs)
        output: VerbNumberOutput = model(**inputs, output_attentions=True)
        for weights in output.attentions:
            recorder.add(weights)
        return output

    def expected_layers(self, model: nn.Module) -> int | None:
        """Six."""
        return len(cast(VerbNumberModel, model).blocks)

    def embedding(self, model: nn.Module, at: EmbeddingSite) -> nn.Module:
        """Return the words' vectors, or (dropped out) their sums with those of the positions."""
        own = cast(VerbNumberModel, model)
        return own.word_embedding if at == "words" else own.dropout

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """[UNK] and [PAD]; there is no token for a mask."""
        words = cast(WordVocabulary, tokenizer)
        special = frozenset((words.cls_id, words.eos_id, words.pad_id))
        return TokenIds({"unk": words.unk_id, "pad": words.pad_id}, special)

    def run_with(
        self, model: nn.Module, inputs: Mapping[str, Tensor], intervention: Intervention
    ) -> Any:
        """Zero values as they are projected; keys are not hidden one by one."""
        self.refuse_other_kinds(model, intervention, allowed=("zero_values",))
        with _watched(model, Session(intervention=intervention)):
            return self.forward(model, inputs)

    def supports_decomposition(self, model: nn.Module) -> bool:
        """Its blocks are our own."""
        return True

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """Return the number of the verb, read from the first position, [CLS]."""
        labels = cast(VerbNumberModel, model).labels
        return [Scores(row, 0, lambda ids: [labels[k] for k in ids]) for row in outputs.logits]


@contextmanager
def _measured(model: VerbNumberModel, recorder: Recorder) -> Iterator[None]:
    """Measure what the recorder was asked for while the model runs."""
    blocks, session = _blocks(model), Session(recorder)
    parts = [Parts(block, block.attention.projection) for block in blocks]
    with ExitStack() as stack:
        stack.enter_context(_watched(model, session))
        stack.enter_context(watched_blocks(parts, recorder, type(model).__name__))
        if VALUE_ZEROING in recorder.record:
            stack.enter_context(replayed(blocks, recorder, session))
        yield


@contextmanager
def _watched(model: nn.Module, session: Session) -> Iterator[None]:
    """Hooks on a model that everyone in the process shares: it is this thread's alone meanwhile."""
    with exclusive(model) as changes:
        for block in _blocks(model):
            attention = block.attention
            hooks = ProjectionHooks(attention, attention.heads, session)
            changes.hook(attention.query_key_value.register_forward_hook, hooks.project)
            changes.hook(attention.register_forward_hook, partial(_show_weights, hooks))
        yield


def _blocks(model: nn.Module) -> list[Block]:
    return cast("list[Block]", list(cast(VerbNumberModel, model).blocks))


def _show_weights(
    hooks: ProjectionHooks, module: nn.Module, inputs: Any, output: tuple[Tensor, Tensor]
) -> None:
    hooks.show(output[1])


def _encode(vocabulary: WordVocabulary, text: str) -> tuple[list[int], list[str]]:
    try:
        return vocabulary.encode(text)
    except ValueError as error:
        raise TokensError(f"The embedded model cannot take this text: {error}") from error
