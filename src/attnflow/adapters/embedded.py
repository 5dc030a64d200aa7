"""The models that ship with attnflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnflow.adapters.host import Adapter, At, Batch, Recorder, Scores, TokenIds
from attnflow.adapters.padding import kept_positions
from attnflow.errors import TokensError
from attnflow.models.verb_number import (
    SelfAttention,
    VerbNumberModel,
    VerbNumberOutput,
    WordVocabulary,
)
from attnflow.tokens import Tokens

__all__ = ["EmbeddedAdapter"]


@dataclass(frozen=True)
class _TextBatch(Batch):
    """A batch made from texts, with the words as they were written."""

    texts: tuple[tuple[str, ...], ...] = ()


class EmbeddedAdapter(Adapter):
    """The verb-number classifier: it returns its attention when asked, so nothing is patched."""

    name = "attnflow's embedded models"

    def recognises(self, model: nn.Module) -> bool:
        """Our own class."""
        return isinstance(model, VerbNumberModel)

    def encode(
        self,
        model: nn.Module,
        tokenizer: Any,
        texts: Sequence[str],
        decoder_texts: Sequence[str] | None = None,
    ) -> Batch:
        """Words to ids, padded on the right; the words travel beside them, as people wrote them."""
        if decoder_texts is not None:
            raise TokensError(
                "The embedded model is an encoder and has no decoder to give text to."
            )
        vocabulary = cast(WordVocabulary, tokenizer)
        encoded = [_encode(vocabulary, text) for text in texts]
        longest = max(len(ids) for ids, _ in encoded)
        rows = [ids + [vocabulary.pad_id] * (longest - len(ids)) for ids, _ in encoded]
        lengths = torch.tensor([[len(ids)] for ids, _ in encoded])
        mask = (torch.arange(longest)[None] < lengths).long()
        return _TextBatch(
            {"input_ids": torch.tensor(rows), "attention_mask": mask},
            size=len(texts),
            kept=kept_positions(mask),
            texts=tuple(tuple(words) for _, words in encoded),
        )

    def name_positions(
        self, model: nn.Module, tokenizer: Any, batch: Batch, example: int, length: int
    ) -> Tokens:
        """The user's own words: an unknown one is shown as written, not as its class."""
        if isinstance(batch, _TextBatch):
            return Tokens(batch.texts[example])
        return super().name_positions(model, tokenizer, batch, example, length)

    def run(self, model: nn.Module, inputs: Mapping[str, Tensor], recorder: Recorder) -> Any:
        """The model's own switch for attention."""
        output: VerbNumberOutput = model(**inputs, output_attentions=True)
        for weights in output.attentions:
            recorder.add(weights)
        return output

    def expected_layers(self, model: nn.Module) -> int | None:
        """Six."""
        return len(cast(VerbNumberModel, model).blocks)

    def embedding(self, model: nn.Module, at: At) -> nn.Module:
        """The words' vectors, or (dropped out) their sums with those of the positions."""
        own = cast(VerbNumberModel, model)
        return own.word_embedding if at == "words" else own.dropout

    def token_ids(self, model: nn.Module, tokenizer: Any) -> TokenIds:
        """[UNK] and [PAD]; there is no token for a mask."""
        words = cast(WordVocabulary, tokenizer)
        special = frozenset((words.cls_id, words.eos_id, words.pad_id))
        return TokenIds({"unk": words.unk_id, "pad": words.pad_id}, special)

    def run_silenced(self, model: nn.Module, inputs: Mapping[str, Tensor], silent: Tensor) -> Any:
        """Queries, keys and values come out of one layer, the values last."""
        rows = torch.arange(len(silent))

        def silence(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
            changed = output.clone()
            changed[rows, silent, -output.shape[-1] // 3 :] = 0
            return changed

        parts = [part for part in model.modules() if isinstance(part, SelfAttention)]
        handles = [part.query_key_value.register_forward_hook(silence) for part in parts]
        try:
            return self.forward(model, inputs)
        finally:
            for handle in handles:
                handle.remove()

    def scores(
        self, model: nn.Module, tokenizer: Any, outputs: Any, batch: Batch
    ) -> list[Scores | None]:
        """The number of the verb, read from the first position, [CLS]."""
        labels = cast(VerbNumberModel, model).labels
        return [Scores(row, 0, lambda ids: [labels[k] for k in ids]) for row in outputs.logits]


def _encode(vocabulary: WordVocabulary, text: str) -> tuple[list[int], list[str]]:
    try:
        return vocabulary.encode(text)
    except ValueError as error:
        raise TokensError(f"The embedded model cannot take this text: {error}") from error
