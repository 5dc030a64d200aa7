"""Documents that the question and the answer miss: leave one out with the question counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import attnflow
from attnflow.errors import InputError, MethodError, ModelError
from attnflow.explainers.ablation import CompletionAblation
from attnflow.explainers.leave_out import AblationTask, function_of
from attnflow.explainers.sources import Sources
from attnflow.methods import LeaveOneOut
from attnflow.testing import tiny_decoder
from test_ablation_passes import COMPLETION, PROMPT, WINDOW, build, mask_of, tiny_t5

ASKED = LeaveOneOut(level="document", question=True)
PLACES = ((1, 2, 3), (4, 5, 6, 7, 8), (10, 11, 12))
DOCUMENTS = Sources(("a", "b", "c"), PLACES, len(PROMPT), "document")
START = 13  # the first position after the documents
TEXTS = {"a.txt": "the keys\n\nto the cabinets .", "b.txt": "the author is old ."}


def joint_log_probs(name: str, hidden: tuple[int, ...], targets: list[slice]) -> list[float]:
    """What follows the documents, each target with the question, by a mask of our own."""
    model, text = build(name, "eager"), torch.tensor([[*PROMPT, *COMPLETION]])
    count = text.shape[1] - 1
    mask = mask_of(count, hidden, WINDOW if name == "mistral" else None, after=START)
    with torch.no_grad():
        logits = model(
            text[:, :-1], attention_mask=mask, position_ids=torch.arange(count)[None]
        ).logits[0]
    rows = logits.log_softmax(-1)[torch.arange(count), text[0, 1:]].double().numpy()
    question = rows[START : len(PROMPT) - 1].sum()  # of the tokens after the first of it
    return [float(question + rows[len(PROMPT) - 1 :][target].sum()) for target in targets]


def measured(method: LeaveOneOut, name: str = "llama", sources: Sources = DOCUMENTS) -> Any:
    ablation = CompletionAblation(
        model=build(name), prompt_ids=PROMPT, completion_ids=COMPLETION, known=(-1.0,) * 4
    )
    return function_of(method)(method, AblationTask(ablation, sources, ((0, 1), (3,))))


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_the_question_and_the_answer_lose_what_is_hidden_from_them(name: str) -> None:
    targets = [slice(0, 2), slice(3, 4)]
    every = tuple(place for each in PLACES for place in each)
    others = [tuple(p for p in every if p not in place) for place in PLACES]
    base, *without = (joint_log_probs(name, hidden, targets) for hidden in ((), *PLACES))
    lost = np.subtract(base, without).T
    values, passes = measured(ASKED, name)
    np.testing.assert_allclose(values, lost, atol=1e-4)
    assert passes == 4
    alone = [joint_log_probs(name, hidden, targets) for hidden in (every, *others)]
    held = np.subtract(np.minimum(alone[1:], base), alone[0]).T
    either = measured(LeaveOneOut(level="document", question=True, alone=True), name)[0]
    np.testing.assert_allclose(either, np.maximum(lost, held), atol=1e-4)
    answer_only = measured(LeaveOneOut(level="document"), name)[0]
    assert np.abs(answer_only - values).max() > 0.01  # it is another question


def test_documents_are_read_once_and_their_ends_side_by_side() -> None:
    model = build("llama")
    lengths: list[int] = []
    model.register_forward_pre_hook(
        lambda _, __, inputs: lengths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    ablation = CompletionAblation(model=model, prompt_ids=PROMPT, completion_ids=COMPLETION)
    function_of(ASKED)(ASKED, AblationTask(ablation, DOCUMENTS, ((0,),)))
    end = len(PROMPT) + len(COMPLETION) - 1 - START
    assert lengths[-1] == 4 * end  # all variants, without the documents
    read = CompletionAblation(
        model=model, prompt_ids=PROMPT, completion_ids=COMPLETION, keys=ablation._passes.prompt_keys
    )
    values, _ = function_of(ASKED)(ASKED, AblationTask(read, DOCUMENTS, ((0, 1), (3,))))
    np.testing.assert_allclose(values, measured(ASKED)[0], atol=1e-4)
    assert lengths.count(START + 1) == 1  # keys that a pass has left are taken


def test_ask_knows_its_documents_and_that_the_question_is_none() -> None:
    options = {"answer": "the author", "check": False}
    answer = attnflow.ask(tiny_decoder(), "the keys", TEXTS, ASKED, **options)
    assert list(answer.result.sources) == ["the keys\n\nto the cabinets .", "the author is old ."]
    assert {source.name for source in answer.statements[0].sources} <= set(TEXTS)


def test_what_cannot_be_measured_so_is_refused() -> None:
    for options in ({}, {"level": "sentence"}, {"level": "document", "by": "delete"}):
        with pytest.raises(MethodError, match="take level='document' and by='hide'"):
            LeaveOneOut(question=True, **options)  # type: ignore[arg-type]
    last = Sources(("a", "b"), ((1, 2), tuple(range(3, len(PROMPT)))), len(PROMPT), "document")
    with pytest.raises(InputError, match="no text after its last document"):
        measured(ASKED, sources=last)
    ablation = CompletionAblation(model=tiny_t5(), prompt_ids=PROMPT, completion_ids=COMPLETION)
    with pytest.raises(ModelError, match="reads its prompt in an encoder"):
        function_of(ASKED)(ASKED, AblationTask(ablation, DOCUMENTS, ((0,),)))
