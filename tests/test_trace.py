"""The lowest door: arrays and tokens, checked once, with an error for every way to get it wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

import attnflow
from attnflow import AttentionTrace
from attnflow.errors import InputError, TokensError, WeightsError
from attnflow.testing import random_attention
from attnflow.trace import Prediction

GOOD = random_attention(2, 3, 4, seed=1)
TOKENS = ["a", "b", "c", "d"]


def test_both_ranks_are_accepted() -> None:
    assert AttentionTrace.from_arrays(GOOD, TOKENS).weights.shape == (2, 3, 4, 4)
    assert AttentionTrace.from_arrays(GOOD[:, 0], TOKENS).weights.shape == (2, 1, 4, 4)
    assert AttentionTrace.from_arrays(GOOD.tolist(), TOKENS).heads == 3


def test_dtype_is_kept_or_widened() -> None:
    for given, kept in (("float64", "float64"), ("float32", "float32"), ("float16", "float32")):
        assert AttentionTrace.from_arrays(GOOD.astype(given), TOKENS).weights.dtype == kept


def test_torch_tensors_are_taken_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(GOOD, requires_grad=True)
    assert np.array_equal(AttentionTrace.from_arrays(tensor, TOKENS).weights, GOOD)
    layers = tuple(tensor.detach().bfloat16())
    assert AttentionTrace.from_arrays(layers, TOKENS).weights.dtype == np.float32


def test_the_users_array_is_copied_and_ours_is_frozen() -> None:
    mine = GOOD.copy()
    trace = AttentionTrace.from_arrays(mine, TOKENS)
    mine[:] = 0
    assert trace.weights.sum() > 0
    with pytest.raises(ValueError, match="read-only"):
        trace.weights[0, 0, 0, 0] = 1


def test_kind_is_recognised() -> None:
    causal = random_attention(2, 1, 4, seed=0, shape="causal")
    assert AttentionTrace.from_arrays(causal, TOKENS).kind == "causal"
    assert AttentionTrace.from_arrays(GOOD, TOKENS).kind == "bidirectional"


def test_declared_sinks_complete_the_rows() -> None:
    sinks = np.full((2, 3, 4), 0.25)
    trace = AttentionTrace.from_arrays(GOOD * 0.75, TOKENS, sinks=sinks)
    assert trace.sinks is not None
    with pytest.raises(WeightsError, match=r"sums to 0\.75 \(off by 0\.25\)"):
        AttentionTrace.from_arrays(GOOD * 0.75, TOKENS)


def test_repr_is_one_line() -> None:
    text = repr(AttentionTrace.from_arrays(GOOD, TOKENS))
    assert text == "<AttentionTrace 2 layers × 3 heads × 4 tokens, 'a b c d'>"


def _with(value: float) -> np.ndarray:
    broken = GOOD.copy()
    broken[1, 2, 0, 3] = value
    return broken


BAD_WEIGHTS = [
    (GOOD[0, 0], "rank 2 (shape (4, 4))"),
    (GOOD[:, None], "pass one example of it: weights[:, 0]"),
    (GOOD[..., :3], "not square: shape (2, 3, 4, 3) has 4 queries and 3 keys"),
    (GOOD[:0], "empty: shape (0, 3, 4, 4)"),
    (_with(np.nan), "finite; weights[1, 2, 0, 3] is nan"),
    (_with(np.inf), "finite; weights[1, 2, 0, 3] is inf"),
    (_with(-0.125), "not be negative; weights[1, 2, 0, 3] is -0.125"),
    (GOOD * 1.5, "sums to 1.5 (off by 0.5)"),
    ([["x"]], "real numbers; got dtype"),
    ([[[1.0]], [[1.0, 2.0]]], "cannot be read as one array"),
]


@pytest.mark.parametrize(("weights", "said"), BAD_WEIGHTS)
def test_bad_weights_are_named(weights: object, said: str) -> None:
    with pytest.raises(WeightsError, match=re.escape(said)):
        AttentionTrace.from_arrays(weights, TOKENS)  # type: ignore[arg-type]


def test_the_worst_row_is_named() -> None:
    broken = GOOD.copy()
    broken[1, 2, 3] *= 0.5
    with pytest.raises(WeightsError, match=r"1 of 24 do not.*layer 2, head 2, query 3.*0\.5"):
        AttentionTrace.from_arrays(broken, TOKENS)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["a"], "1 tokens for attention over 4 positions"),
        ("abcd", "tokens is one string"),
        (["a", "b", "c", 4], "must be strings; got 4 (int)"),
    ],
)
def test_bad_tokens_are_named(tokens: object, said: str) -> None:
    with pytest.raises(TokensError, match=re.escape(said)):
        AttentionTrace.from_arrays(GOOD, tokens)  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [[1], [2, 1], [0, 1], [1, 1]])
def test_bad_layer_numbers_are_named(layers: list[int]) -> None:
    with pytest.raises(WeightsError, match="increasing numbers counted from 1"):
        AttentionTrace.from_arrays(GOOD, TOKENS, layers=layers)


def test_bad_sinks_are_named() -> None:
    with pytest.raises(WeightsError, match=r"shape \(2, 3, 4\)"):
        AttentionTrace.from_arrays(GOOD, TOKENS, sinks=np.zeros(3))


def test_every_error_is_ours_and_a_value_error() -> None:
    assert issubclass(WeightsError, attnflow.AttnflowError)
    assert issubclass(WeightsError, ValueError)


def test_a_tolerance_of_nothing_is_nothing() -> None:
    off = GOOD.copy()
    off[1, 2, 3] *= 1 + 1e-7
    with pytest.raises(WeightsError, match=r"within 0; .*layer 7, head 2, query 3"):
        AttentionTrace.from_arrays(off, TOKENS, row_tolerance=0, layers=[3, 7])
    exact = np.tile(np.eye(4), (1, 1, 1, 1))
    assert AttentionTrace.from_arrays(exact, TOKENS, row_tolerance=0).row_tolerance == 0
    for wrong in (-1, 2, "x", True, float("nan")):
        with pytest.raises(InputError, match="row_tolerance is a number from 0 to 1"):
            AttentionTrace.from_arrays(GOOD, TOKENS, row_tolerance=wrong)  # type: ignore[arg-type]


def test_a_kind_must_exist_and_fit_the_weights() -> None:
    with pytest.raises(InputError, match="kind='zzz'"):
        AttentionTrace.from_arrays(GOOD, TOKENS, kind="zzz")  # type: ignore[arg-type]
    with pytest.raises(WeightsError, match="kind='causal', but a position gives"):
        AttentionTrace.from_arrays(GOOD, TOKENS, kind="causal")
    causal = random_attention(2, 1, 4, seed=0, shape="causal")
    for kind in ("causal", "bidirectional", "cross"):
        made = AttentionTrace.from_arrays(causal, TOKENS, kind=kind)  # type: ignore[arg-type]
        assert made.kind == kind


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"layers": 5}, "increasing numbers"),
        ({"layers": ["a", "b"]}, "increasing numbers"),
        ({"layers": [1, 10**400]}, "increasing numbers"),
        ({"sinks": "x"}, "sinks cannot be read"),
        ({"gradients": "x"}, "gradients cannot be read"),
        ({"measured": {"alti": "x"}}, "cannot be read as numbers"),
        ({"measured": [1]}, "arrays by name"),
        ({"mixed_heads": "mean"}, "the weights have one head"),
        ({"stages": ["encoder", "x"], "encoder_length": 2}, "stages names 'encoder'"),
        ({"stages": ["encoder", "cross"], "encoder_length": 4}, "encoder_length is how many"),
        ({"stages": ["encoder", "cross"]}, "encoder_length is how many"),
        ({"prediction": "x"}, "prediction is a Prediction or None"),
        ({"prediction": Prediction("a", 0.5, 9)}, "from position 9; there are 4"),
    ],
)
def test_other_arguments_are_checked(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        AttentionTrace.from_arrays(GOOD, TOKENS, **arguments)  # type: ignore[arg-type]


def test_predictions_are_checked() -> None:
    for wrong in ((5, 0.5, 0), ("a", 2.0, 0), ("a", float("nan"), 0), ("a", 0.5, -1)):
        with pytest.raises(InputError, match="A prediction's"):
            Prediction(*wrong)  # type: ignore[arg-type]


def test_everything_in_a_trace_is_frozen() -> None:
    trace = AttentionTrace.from_arrays(
        GOOD * 0.5, TOKENS, sinks=np.full((2, 3, 4), 0.5), gradients=GOOD
    )
    assert trace.sinks is not None
    assert trace.gradients is not None
    assert not trace.sinks.flags.writeable
    assert not trace.gradients.flags.writeable
