"""The Triton kernels on small shapes, in Triton's interpreter: run by tests/test_kernels.py.

TRITON_INTERPRET=1 python tests/triton_cases.py
"""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import triton
from test_kernels import (
    INTERPRETED,
    PRODUCTS,
    attention_by_autograd,
    attention_of,
    difference,
    expected,
    sums_of,
    vectors_for,
)

from triton.language import core
from triton.runtime import interpreter

from attnflow.kernels import triton_kernels
from attnflow.kernels.triton_kernels import Tiles


def patch_once() -> None:
    """Have the interpreter put itself into Triton's language for good.

    Left alone it goes through the whole language at each call of a function in a kernel, which
    takes longer than the arithmetic.
    """
    language = SimpleNamespace(__globals__={"language": triton.language, "core": core})
    interpreter._patch_lang(language)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def main() -> None:
    """Every case with the tiles of float32, and with tiles that sum several heads."""
    patch_once()
    for name, layer in INTERPRETED.items():
        sums = sums_of(layer)
        for secant in (False, True) if layer.softcap else (False,):
            for tiles in (None, Tiles(32, 16)):
                found = attention_of(triton_kernels, layer, secant, tiles=tiles)
                off = difference(found, attention_by_autograd(layer, secant))
                assert off < 5e-6, (name, secant, tiles, off)
        print(name, "attention and its way back equal")
        for product in PRODUCTS:
            vectors, shares = vectors_for(product, layer)
            truth = expected(product, layer, vectors, shares)
            for tiles in (None, Tiles(32, 16, heads=4)):
                ours = getattr(triton_kernels, product)(layer, sums, vectors, shares, tiles)
                np.testing.assert_allclose(ours, truth, atol=2e-5, err_msg=f"{name} {product}")
                print(name, product, tiles, "equal")


if __name__ == "__main__":
    sys.exit(main())
