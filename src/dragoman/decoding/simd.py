"""Sixteen numbers at once, in functions that Numba compiles: a type of it, and what a processor does with it in an instruction or a few.

Numba makes one instruction of sixteen steps of a loop only where it finds out by itself that it may; here it is told. Places in memory are
an address and how many numbers behind it, and nobody looks whether they are right. ``narrow`` numbers are in bfloat16. Products of matrices
are those of the library that PyTorch has in it.
"""

from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

LANES = 16
_FLOAT, _INT = ir.FloatType(), ir.IntType(32)
_FLOATS, _INTS, _HALVES = (ir.VectorType(each, LANES) for each in (_FLOAT, _INT, ir.IntType(16)))
_EXP = (1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2, 2.402264791363012e-1, 6.931472028550421e-1)
"""Of 2ˣ - 1 for x from -1/2 to 1/2, the coefficients of x⁶ to x."""


class _Floats(types.Type):
    pass


@cast(Any, register_model)(_Floats)
class _FloatsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        cast(Any, super()).__init__(manager, kind, _FLOATS)


_floats = cast(Any, _Floats)(name="SixteenFloats")
_instruction: Callable[[Any], Any] = cast(Any, intrinsic)
_Made = tuple[Any, Callable[..., Any]]


def _instructions(result: Any, arguments: tuple[Any, ...], write: Callable[..., Any]) -> _Made:
    """What Numba wants of an `intrinsic`; ``write`` is called with a builder of instructions and the arguments' values."""

    def write_all(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        made = write(builder, *values)
        return context.get_dummy_value() if made is None else made

    return result(*arguments), write_all


def _all(number: float, kind: Any = _FLOATS) -> Any:
    return ir.Constant(kind, [number] * LANES)


def _place(builder: Any, address: Any, index: Any, size: int, kind: Any) -> Any:
    return builder.inttoptr(builder.add(address, builder.mul(index, ir.Constant(ir.IntType(64), size))), ir.PointerType(kind))


def _read(builder: Any, address: Any, index: Any, size: int, kind: Any) -> Any:
    made = builder.load(_place(builder, address, index, size, kind))
    made.align = size
    return made


def _write(builder: Any, address: Any, index: Any, size: int, value: Any) -> None:
    builder.store(value, _place(builder, address, index, size, value.type)).align = size


def _call(builder: Any, name: str, *arguments: Any) -> Any:
    kind = ir.FunctionType(arguments[0].type, [each.type for each in arguments])
    return builder.call(builder.module.declare_intrinsic(f"llvm.{name}.v{LANES}f32", fnty=kind), arguments)


def _larger_of(builder: Any, x: Any, y: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", x, y), x, y)


def _shuffled(builder: Any, x: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), ir.Constant(ir.VectorType(_INT, LANES), places))


def _of_all(builder: Any, x: Any, join: Callable[[Any, Any, Any], Any]) -> Any:
    """The sixteen of x joined two by two."""
    half = LANES // 2
    while half:
        x = join(builder, x, _shuffled(builder, x, [(lane + half) % LANES for lane in range(LANES)]))
        half //= 2
    return builder.extract_element(x, ir.Constant(_INT, 0))


@_instruction
def number_at(_context: Any, address: Any, index: Any) -> _Made:
    """One number of memory."""
    return _instructions(types.float32, (types.int64, types.int64), lambda b, address, index: _read(b, address, index, 4, _FLOAT))


@_instruction
def put_number(_context: Any, address: Any, index: Any, number: Any) -> _Made:
    """One number to memory."""
    return _instructions(
        types.void, (types.int64, types.int64, types.float32), lambda b, address, index, x: _write(b, address, index, 4, x)
    )


@_instruction
def at(_context: Any, address: Any, index: Any) -> _Made:
    """Sixteen numbers of memory."""
    return _instructions(_floats, (types.int64, types.int64), lambda b, address, index: _read(b, address, index, 4, _FLOATS))


@_instruction
def narrow_at(_context: Any, address: Any, index: Any) -> _Made:
    """Sixteen narrow numbers of memory."""

    def write(b: Any, address: Any, index: Any) -> Any:
        return b.bitcast(b.shl(b.zext(_read(b, address, index, 2, _HALVES), _INTS), _all(16, _INTS)), _FLOATS)

    return _instructions(_floats, (types.int64, types.int64), write)


@_instruction
def put(_context: Any, address: Any, index: Any, x: Any) -> _Made:
    """Sixteen numbers to memory."""
    return _instructions(types.void, (types.int64, types.int64, _floats), lambda b, address, index, x: _write(b, address, index, 4, x))


@_instruction
def put_narrow(_context: Any, address: Any, index: Any, x: Any) -> _Made:
    """Sixteen numbers to memory, each as the narrow one next to it, the even one of two; what is no number stays none."""

    def write(b: Any, address: Any, index: Any, x: Any) -> None:
        bits = b.bitcast(x, _INTS)
        odd = b.and_(b.lshr(bits, _all(16, _INTS)), _all(1, _INTS))
        rounded = b.lshr(b.add(bits, b.add(odd, _all(0x7FFF, _INTS))), _all(16, _INTS))
        _write(b, address, index, 2, b.trunc(b.select(b.fcmp_unordered("uno", x, x), _all(0x7FC0, _INTS), rounded), _HALVES))

    return _instructions(types.void, (types.int64, types.int64, _floats), write)


@_instruction
def sixteen(_context: Any, number: Any) -> _Made:
    """A number sixteen times."""

    def write(b: Any, number: Any) -> Any:
        return _shuffled(b, b.insert_element(ir.Constant(_FLOATS, ir.Undefined), number, ir.Constant(_INT, 0)), [0] * LANES)

    return _instructions(_floats, (types.float32,), write)


@_instruction
def plus(_context: Any, x: Any, y: Any) -> _Made:
    """x + y."""
    return _instructions(_floats, (_floats, _floats), lambda b, x, y: b.fadd(x, y))


@_instruction
def minus(_context: Any, x: Any, y: Any) -> _Made:
    """x - y."""
    return _instructions(_floats, (_floats, _floats), lambda b, x, y: b.fsub(x, y))


@_instruction
def times(_context: Any, x: Any, y: Any) -> _Made:
    """x y."""
    return _instructions(_floats, (_floats, _floats), lambda b, x, y: b.fmul(x, y))


@_instruction
def times_plus(_context: Any, x: Any, y: Any, z: Any) -> _Made:
    """x y + z, rounded once."""
    return _instructions(_floats, (_floats,) * 3, lambda b, x, y, z: _call(b, "fma", x, y, z))


@_instruction
def larger(_context: Any, x: Any, y: Any) -> _Made:
    """The larger of each two; y where x is no number."""
    return _instructions(_floats, (_floats, _floats), _larger_of)


@_instruction
def sum_of(_context: Any, x: Any) -> _Made:
    """The sum of the sixteen."""
    return _instructions(types.float32, (_floats,), lambda b, x: _of_all(b, x, lambda b, x, y: b.fadd(x, y)))


@_instruction
def largest_of(_context: Any, x: Any) -> _Made:
    """The largest of the sixteen, if all are numbers."""
    return _instructions(types.float32, (_floats,), lambda b, x: _of_all(b, x, _larger_of))


@_instruction
def exponential(_context: Any, x: Any) -> _Made:
    """eˣ to about 2e-7 of it, of x up to 88; 2⁻¹²⁶ below -87. What is no number stays none."""

    def write(b: Any, x: Any) -> Any:
        y = b.fmul(x, _all(1.4426950408889634))  # eˣ = 2ʸ
        y = b.select(b.fcmp_ordered("<", y, _all(-126.0)), _all(-126.0), y)
        whole = _call(b, "rint", y)
        rest, made = b.fsub(y, whole), _all(_EXP[0])
        for coefficient in (*_EXP[1:], 1.0):
            made = _call(b, "fma", made, rest, _all(coefficient))
        power = b.shl(b.add(b.fptosi(whole, _INTS), _all(127, _INTS)), _all(23, _INTS))
        return b.fmul(made, b.bitcast(power, _FLOATS))

    return _instructions(_floats, (_floats,), write)


@_instruction
def multiply(_context: Any, function: Any, rows: Any, inner: Any, columns: Any, x: Any, matrix: Any, kept: Any, made: Any) -> _Made:
    """made (rows, columns) ← kept · made + x (rows, inner) · matrix (inner, columns), both narrow, summed up in float32.

    ``function`` is where cblas_gemm_bf16bf16f32 lies.
    """

    def write(b: Any, function: Any, rows: Any, inner: Any, columns: Any, x: Any, matrix: Any, kept: Any, made: Any) -> None:
        by_rows, as_it_is, one = ir.Constant(_INT, 101), ir.Constant(_INT, 111), ir.Constant(_FLOAT, 1.0)
        rows, inner, columns = (b.trunc(each, _INT) for each in (rows, inner, columns))
        x, matrix, made = (b.inttoptr(each, ir.PointerType(ir.IntType(8))) for each in (x, matrix, made))
        values = [by_rows, as_it_is, as_it_is, rows, columns, inner, one, x, inner, matrix, columns, kept, made, columns]
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
        b.call(b.inttoptr(function, ir.PointerType(kind)), values)

    return _instructions(types.void, (types.int64,) * 6 + (types.float32, types.int64), write)
