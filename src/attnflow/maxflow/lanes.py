"""Eight integers at a time: the vector instructions plans are made of.

A plan is a hundred short loops over rows and columns of the graph.  Left to itself the compiler
turns few of them into vector instructions: it cannot know that the arrays do not overlap, or that
no index is negative.  So the loops here say what they mean.  `load` takes eight neighbours of an
array, 32 or 64 bits each, into one value; the other functions work on such values.  LLVM maps
them to whatever the processor has.

Arrays are as long as a multiple of `LANES` (`state.padded`), so no loop has a rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import make_array

LANES = 8
"""How many integers are taken at a time; every processor of today has registers for them."""

Vector = Any
"""Eight integers, in compiled code only."""


class Lanes(types.Type):
    """The compiler's type of eight integers of one width."""

    def __init__(self, element: Any) -> None:
        self.element = element
        super().__init__(name=f"Lanes({element})")


def _vector_type(lanes: Lanes) -> ir.VectorType:
    return ir.VectorType(ir.IntType(lanes.element.bitwidth), LANES)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    """Held in registers as one vector of LLVM's."""

    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, _vector_type(lanes))  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, array_type: Any, array: Any, place: Any) -> Any:
    """Return where the vector at `place` begins."""
    view: Any = make_array(array_type)  # type: ignore[no-untyped-call]
    data = view(context, builder, array).data
    kind = _vector_type(Lanes(array_type.dtype))
    return builder.bitcast(builder.gep(data, [place]), kind.as_pointer())


def _reduce(builder: Any, how: str, vector: Any) -> Any:
    """One number from all lanes: LLVM's `vector.reduce` of that name."""
    element = vector.type.element
    kind = ir.FunctionType(element, [vector.type])
    name = f"llvm.vector.reduce.{how}.v{LANES}i{element.width}"
    function = cgutils.get_or_insert_function(  # type: ignore[no-untyped-call]
        builder.module, kind, name
    )
    return builder.call(function, [vector])


def _spread(builder: Any, number: Any) -> Any:
    """The same number in every lane."""
    kind = ir.VectorType(number.type, LANES)
    one = builder.insert_element(
        ir.Constant(kind, ir.Undefined), number, ir.Constant(ir.IntType(32), 0)
    )
    first = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), first)


def _load(typing_context: Any, array: Any, place: Any) -> Any:
    signature = Lanes(array.dtype)(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments)
        return builder.load(address, align=signature.args[0].dtype.bitwidth // 8)

    return signature, generate


def _store(typing_context: Any, array: Any, place: Any, vector: Any) -> Any:
    signature = types.void(array, types.intp, vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], address, align=signature.args[0].dtype.bitwidth // 8)
        return context.get_dummy_value()

    return signature, generate


def _nothing(typing_context: Any, array: Any) -> Any:
    signature = Lanes(array.dtype)(array)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_vector_type(signature.return_type), None)

    return signature, generate


def _elementwise(step: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    """An operation on two vectors, lane by lane."""

    def operation(typing_context: Any, one: Any, other: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return step(builder, *arguments)

        return one(one, other), generate

    return operation


def _least(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed("<", one, other), one, other)


def _most(builder: Any, one: Any, other: Any) -> Any:
    return builder.select(builder.icmp_signed(">", one, other), one, other)


def _total(typing_context: Any, vector: Any) -> Any:
    signature = types.int64(vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = _reduce(builder, "add", arguments[0])
        return builder.sext(number, ir.IntType(64)) if number.type.width < 64 else number

    return signature, generate


def _union(typing_context: Any, vector: Any) -> Any:
    signature = types.uint64(vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _reduce(builder, "or", arguments[0])

    return signature, generate


def _in_use(typing_context: Any, vector: Any) -> Any:
    signature = types.uint64(vector)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.Constant(arguments[0].type, None)
        used = builder.icmp_unsigned("!=", arguments[0], nothing)
        return builder.zext(builder.bitcast(used, ir.IntType(LANES)), ir.IntType(64))

    return signature, generate


def _members(typing_context: Any, vector: Any, amount: Any) -> Any:
    signature = types.uint64(vector, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, amount = arguments
        if vector.type.element.width < 64:
            amount = builder.trunc(amount, vector.type.element)
        large = builder.icmp_signed(">=", vector, _spread(builder, amount))
        return builder.zext(builder.bitcast(large, ir.IntType(LANES)), ir.IntType(64))

    return signature, generate


def _first_of(typing_context: Any, vector: Any, amount: Any) -> Any:
    signature = vector(vector, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, amount = arguments
        element = vector.type.element
        if element.width < 64:
            amount = builder.trunc(amount, element)
        nothing = ir.Constant(vector.type, None)
        sums = vector  # of each lane and those before it, after a few steps of twice the width
        for step in (1, 2, 4):
            moved = [lane - step if lane >= step else LANES for lane in range(LANES)]
            places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), moved)
            sums = builder.add(sums, builder.shuffle_vector(sums, nothing, places))
        before = builder.sub(sums, vector)
        left = _most(builder, builder.sub(_spread(builder, amount), before), nothing)
        return _least(builder, vector, left)

    return signature, generate


load = cast(Callable[[Any, int], Vector], intrinsic(_load))
"""Eight neighbours of an array, from a place on."""
store = cast(Callable[[Any, int, Vector], None], intrinsic(_store))
"""Put them back, or elsewhere."""
nothing = cast(Callable[[Any], Vector], intrinsic(_nothing))
"""Eight zeros as wide as the numbers of an array."""
add = cast(Callable[[Vector, Vector], Vector], intrinsic(_elementwise(lambda b, x, y: b.add(x, y))))
"""The sums of two vectors, lane by lane."""
subtract = cast(
    Callable[[Vector, Vector], Vector], intrinsic(_elementwise(lambda b, x, y: b.sub(x, y)))
)
"""Their differences."""
least = cast(Callable[[Vector, Vector], Vector], intrinsic(_elementwise(_least)))
"""The lesser of each two."""
most = cast(Callable[[Vector, Vector], Vector], intrinsic(_elementwise(_most)))
"""The greater of each two."""
without = cast(
    Callable[[Vector, Vector], Vector],
    intrinsic(_elementwise(lambda b, x, y: b.and_(x, b.not_(y)))),
)
"""The bits of the first that are not set in the second."""
both = cast(
    Callable[[Vector, Vector], Vector], intrinsic(_elementwise(lambda b, x, y: b.and_(x, y)))
)
"""The bits that are set in both."""
in_use = cast(Callable[[Vector], np.uint64], intrinsic(_in_use))
"""Which of the eight words have any bit set, as bits."""
union = cast(Callable[[Vector], np.uint64], intrinsic(_union))
"""The bits that are set in any of the eight words."""
total = cast(Callable[[Vector], int], intrinsic(_total))
"""The sum of the eight, which must fit their width."""
members = cast(Callable[[Vector, int], np.uint64], intrinsic(_members))
"""Which of the eight are at least so large, as bits."""
first_of = cast(Callable[[Vector, int], Vector], intrinsic(_first_of))
"""As much of them, from the first on, as sums to an amount."""
