"""The compiler, and the two machine words everything else in this package is made of.

Node sets are rows of 64-bit words: node ``v`` is bit ``v % 64`` of word ``v // 64``.  A step of a
breadth-first search is then a handful of ANDs, and walking a set costs one `trailing_zeros` per
member instead of one test per node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.cpu import CPUTargetOptions
from numba.extending import intrinsic

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])

_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True}
if hasattr(CPUTargetOptions, "_nrt"):  # undocumented; without it the solver is right, but slower
    _OPTIONS["_nrt"] = False

ONE = np.uint64(1)
NONE = np.uint64(0)


def compiled(function: AnyFunction) -> AnyFunction:
    """Compile on first call, keep the machine code on disk, release the interpreter lock.

    `_nrt=False` switches numba's reference counting off.  The functions here allocate nothing and
    are called with arrays that outlive them; with counting on, every call of a small function pays
    two atomic operations per array argument, and the whole solver is three times slower.

    A function is compiled once more for every literal that it is called with, or that a variable
    begins with.  `natural(0)` is no literal, and spares the second time where it takes long.
    """
    return cast(AnyFunction, njit(**_OPTIONS)(function))


def inlined(function: AnyFunction) -> AnyFunction:
    """Like `compiled`, and always inlined: for steps shorter than the cost of passing arrays.

    By LLVM, not by numba (`inline="always"`), which would read, type and translate the function
    anew wherever it is used: the solver would take a quarter longer to compile.
    """
    return cast(AnyFunction, njit(**_OPTIONS, forceinline=True)(function))


def _count_trailing_zeros(typing_context: Any, word: Any) -> Any:
    signature = types.int64(types.uint64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero_is_undefined = ir.Constant(ir.IntType(1), 1)
        return builder.cttz(arguments[0], zero_is_undefined)

    return signature, generate


trailing_zeros = cast(Callable[[np.uint64], int], intrinsic(_count_trailing_zeros))
"""Index of the lowest set bit; undefined for zero."""


def _not_negative(typing_context: Any, number: Any) -> Any:
    signature = types.int64(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        builder.assume(builder.icmp_signed(">=", arguments[0], zero))
        return arguments[0]

    return signature, generate


natural = cast(Callable[[int], int], intrinsic(_not_negative))
"""The same number, of which the compiler may assume that it is not negative: an index that was read
from an array is otherwise tested for counting from the end at every use, a tenth of a search."""


@inlined
def bit(node: int) -> Any:
    """The word in which only `node`'s bit is set."""
    return ONE << np.uint64(node & 63)
