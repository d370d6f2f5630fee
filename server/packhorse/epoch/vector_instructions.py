"""Vector and prefetch instructions for kernels, which the compiler does not find by itself.

Owns them as intrinsics of Numba, functions that write instructions of LLVM. The compiler would turn a loop that writes
8 equal numbers into 8 stores; here it is one. Without Numba only the constants are used.
"""

from typing import Any

from packhorse.compiling import HAS_NUMBA

if HAS_NUMBA:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.extending import intrinsic

    _INT32 = ir.IntType(32)
    _READ, _INTO_SECOND_CACHE, _DATA = (ir.Constant(_INT32, number) for number in (0, 2, 1))

LANES = 8
"""Numbers that `fill_lanes` and `count_lanes` write at once."""

WIDE_LANES = 16
"""Numbers that `copy_lanes` copies at once; most bins have fewer sequences."""


def _intrinsic(function: Any) -> Any:
    """Decorates as Numba's `intrinsic`: a call compiles to what `generate` writes. Without Numba, changes nothing.

    The function is called when a kernel is compiled. Its first argument is Numba's typing context, which a call in a
    kernel leaves out; the others are the types of the call's arguments.
    """
    return intrinsic(function) if HAS_NUMBA else function


@_intrinsic
def fill_lanes(_: Any, array: Any, index: Any, value: Any) -> Any:
    """Compiles to array[index : index + LANES] = value, for integers and an unsigned index; checks no bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(context, builder, signature, arguments, [0] * LANES)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


@_intrinsic
def count_lanes(_: Any, array: Any, index: Any, first: Any) -> Any:
    """Compiles to array[index : index + LANES] = first, first + 1, …; otherwise as `fill_lanes`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(context, builder, signature, arguments, list(range(LANES)))
        return context.get_dummy_value()

    return types.void(array, index, first), generate


@_intrinsic
def copy_lanes(_: Any, values: Any, index: Any, array: Any, to: Any) -> Any:
    """Compiles to array[to : to + WIDE_LANES] = values[index : index + WIDE_LANES].

    Both arrays have the same type of integers, and indices are unsigned. Checks no bounds.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0].dtype
        lanes = ir.VectorType(context.get_value_type(kind), WIDE_LANES).as_pointer()
        written, read = (_pointer(context, builder, signature, arguments, first) for first in (2, 0))
        copied = builder.load(builder.bitcast(read, lanes), align=kind.bitwidth // 8)
        builder.store(copied, builder.bitcast(written, lanes), align=kind.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(values, index, array, to), generate


@_intrinsic
def prefetch(_: Any, array: Any, index: Any) -> Any:
    """Compiles to a prefetch of array[index], for an unsigned index. Checks no bounds.

    It loads into the second-level cache: if it loaded into the first, its misses would hold up every other read.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.bitcast(_pointer(context, builder, signature, arguments), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _INT32, _INT32, _INT32])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(ask, [pointer, _READ, _INTO_SECOND_CACHE, _DATA])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _store(context: Any, builder: Any, signature: Any, arguments: Any, added: list[int]) -> None:
    """Writes instructions for arguments (array, index, value): array[index + lane] = value + added[lane]."""
    kind = signature.args[0].dtype
    element = context.get_value_type(kind)
    lanes = ir.VectorType(element, LANES)
    value = context.cast(builder, arguments[2], signature.args[2], kind)
    # The value goes into lane 0 of a vector; a shuffle that takes lane 0 for every lane then copies it to all.
    in_lane_0 = builder.insert_element(ir.Constant(lanes, ir.Undefined), value, ir.Constant(_INT32, 0))
    all_from_0 = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    in_all_lanes = builder.shuffle_vector(in_lane_0, in_lane_0, all_from_0)
    if any(added):
        in_all_lanes = builder.add(in_all_lanes, ir.Constant(lanes, added))
    pointer = builder.bitcast(_pointer(context, builder, signature, arguments), lanes.as_pointer())
    builder.store(in_all_lanes, pointer, align=kind.bitwidth // 8)


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any, first: int = 0) -> Any:
    """Writes instructions for the address of array[index]; the array is argument number `first`, the index the next."""
    array = context.make_array(signature.args[first])(context, builder, arguments[first])
    index = context.cast(builder, arguments[first + 1], signature.args[first + 1], types.uint64)
    return builder.gep(array.data, [index])
