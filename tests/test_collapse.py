"""Rows that no longer depend on their target are measured, marked, kept and warned about."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

from attnflow import AttentionTrace, Attribution, Flow, GradientRollout, Raw, Rollout, explain
from attnflow.attribution import COLLAPSED, dependence_of
from attnflow.errors import AttributionWarning, CollapseWarning, SaturationWarning
from attnflow.methods import quiet_about_limits
from attnflow.testing import random_attention, random_trace


def sink_trace(layers: int = 30, length: int = 12) -> AttentionTrace:
    """A decoder that parks nine tenths of its attention on the first token, as SmolLM2 does."""
    weights = random_attention(layers, 1, length, seed=0, shape="causal") * 0.1
    weights[..., 0] += 0.9
    return AttentionTrace.from_arrays(weights, [f"t{k}" for k in range(length)])


def test_dependence_is_the_mean_total_variation() -> None:
    rows = np.array([[[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]]])
    result = dependence_of(rows, rows, [0, 1, 2], [0, 1, 2])
    assert result is not None
    assert np.allclose(result, [[(0.5 + 1) / 2, 0.5, (0.5 + 1) / 2]])
    assert dependence_of(rows[:, :1], rows[:, :1], [0], [0]) is None
    empty = dependence_of(rows[:, :1] * 0, rows, [0], [0, 1, 2])
    assert empty is not None
    assert empty.tolist() == [[1.0]]


def test_a_decoder_that_forgets_its_target_is_marked_and_warned_about() -> None:
    with pytest.warns(CollapseWarning, match=r'layer 30.*method="gradient-attention"'):
        result = Rollout()(sink_trace())
    assert result.collapsed[-1] == 30
    assert 1 not in result.collapsed
    assert result.dependence is not None
    assert result.dependence.shape == (30, 12)
    assert result.dependence[-1].max() < COLLAPSED < result.dependence[0].min()
    assert "collapsed" in result._repr_html_()


def test_one_row_is_held_against_others_that_were_not_asked_for() -> None:
    trace = sink_trace()
    with pytest.warns(CollapseWarning):
        one = Rollout()(trace, targets=[11], layers=-1)
    assert one.collapsed == (30,)
    with quiet_about_limits():
        every = Rollout()(trace)
    assert one.dependence is not None
    assert every.dependence is not None
    assert np.allclose(one.dependence[0, 0], every.dependence[-1, 11])
    assert every.row(11).collapsed == every.collapsed


def test_what_remembers_its_target_is_not_marked() -> None:
    for result in (
        explain(None, "the key to the cabinets", "rollout", targets="all"),
        explain(None, "the senators near the old mill", "rollout", targets="all"),
        Rollout(residual="one-step")(sink_trace()),
        Rollout()(sink_trace(layers=3)),
        Raw()(sink_trace()),
        GradientRollout()(random_trace(record=("gradients",))),
    ):
        assert not result.collapsed


def test_an_identical_attention_of_one_layer_is_marked() -> None:
    with pytest.warns(CollapseWarning):
        result = Raw()(random_trace(layers=1, shape="uniform"))
    assert result.collapsed == (1,)


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_the_mark_is_kept_in_files(tmp_path: Path, suffix: str) -> None:
    with quiet_about_limits():
        result = Rollout()(sink_trace(), targets=[11])
    result.save(tmp_path / f"result{suffix}")
    back = Attribution.load(tmp_path / f"result{suffix}")
    assert back.collapsed == result.collapsed
    assert back.layer(30).merge_words().collapsed == (30,)
    assert back.normalize("sum").collapsed == result.collapsed
    assert back.without([0]).dependence is None


def test_a_saturated_flow_warns() -> None:
    trace = random_trace(layers=6, heads=2, length=8, seed=1)
    with pytest.warns(SaturationWarning, match=r"layer 6 most flows are saturated.*gradient-att"):
        Flow()(trace)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Flow()(trace, layers=[1, 2])
        with quiet_about_limits():
            Flow()(trace)


def test_the_highest_layer_counts_whatever_the_order() -> None:
    with pytest.warns(SaturationWarning, match="layer 6"):
        Flow()(random_trace(layers=6, heads=2, length=8, seed=1), layers=[6, 1])


def test_a_warning_is_given_once_for_each_place() -> None:
    trace = sink_trace()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            Rollout()(trace)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_the_classes_have_one_root() -> None:
    assert issubclass(CollapseWarning, AttributionWarning)
    assert issubclass(SaturationWarning, AttributionWarning)
    assert issubclass(AttributionWarning, UserWarning)
