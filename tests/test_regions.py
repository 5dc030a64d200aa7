"""The region that a map lies on, in words: many maps whose place is known."""

from __future__ import annotations

import numpy as np
import pytest

from attnflow.attribution.patch_maps import region_of

PLACES = {
    (0.5, 0.5): "the middle",
    (0.5, 0.85): "the area right of the middle",
    (0.5, 0.15): "the area left of the middle",
    (0.12, 0.5): "the area above the middle",
    (0.88, 0.5): "the area below the middle",
    (0.1, 0.1): "the upper left corner",
    (0.1, 0.9): "the upper right corner",
    (0.9, 0.1): "the lower left corner",
    (0.9, 0.9): "the lower right corner",
}


def spot(rows: int, columns: int, centre: tuple[float, float], width: float = 0.08) -> np.ndarray:
    down = (np.arange(rows) + 0.5) / rows - centre[0]
    across = (np.arange(columns) + 0.5) / columns - centre[1]
    return np.exp(-(down[:, None] ** 2 + across[None, :] ** 2) / (2 * width**2))


@pytest.mark.parametrize("shape", [(6, 6), (7, 7), (14, 14), (24, 32), (37, 20)])
@pytest.mark.parametrize("centre", PLACES)
def test_a_spot_is_called_by_its_place(shape: tuple[int, int], centre: tuple[float, float]) -> None:
    values = spot(*shape, centre)
    region = region_of(values)
    assert region is not None
    assert region.name == PLACES[centre]
    inside = values.ravel()[list(region.patches)].sum() / values.sum()
    assert region.share == pytest.approx(inside)
    assert region.share > 0.7
    assert region.area == pytest.approx(len(region.patches) / values.size)
    assert int(values.argmax()) in region.patches  # the brightest patch is in it


@pytest.mark.parametrize(
    ("box", "name"),
    [
        (np.s_[:, :6], "the left half"),
        (np.s_[:, 6:], "the right half"),
        (np.s_[:6, :], "the upper half"),
        (np.s_[:4, :], "the upper third"),
        (np.s_[8:, :], "the lower third"),
        (np.s_[:, 8:], "the right third"),
        (np.s_[4:8, :], "the middle row"),
        (np.s_[:, 4:8], "the middle column"),
        (np.s_[:6, :6], "the upper left corner"),
    ],
)
def test_strips_and_quarters_have_names(box: tuple[slice, slice], name: str) -> None:
    values = np.zeros((12, 12))
    values[box] = 1.0
    region = region_of(values)
    assert region is not None
    assert (region.name, region.share) == (name, 1.0)


def test_noise_around_a_spot_does_not_move_it() -> None:
    rng = np.random.default_rng(0)
    for centre, name in PLACES.items():
        values = 2 * spot(14, 14, centre) + 0.1 * rng.random((14, 14))
        region = region_of(values)
        assert region is not None
        assert region.name == name


def test_flat_small_and_empty_maps_have_no_region() -> None:
    rng = np.random.default_rng(1)
    assert region_of(np.ones((14, 14))) is None
    assert region_of(1 + 0.05 * rng.random((14, 14))) is None
    assert region_of(np.zeros((14, 14))) is None
    assert region_of(-spot(14, 14, (0.5, 0.5))) is None  # what speaks against it is nothing
    assert region_of(np.eye(2)) is None
