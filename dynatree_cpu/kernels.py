"""Machine code for a forward of few tokens of the Llama family: one call a forward, whatever the number of layers.

numba compiles this file at the first use and keeps the result on disk; no compiler need be installed. All threads run
`work`. Of each stage a thread takes the blocks of its own share, then those that others have left. Matrices are packed
in blocks of `WIDTH` outputs, so that a product reads each weight once, in order, for up to `TILE` tokens; that reading
is what bounds its time. In bfloat16, inputs are rounded to it before a product, sums and everything between products
are float32. Weights that a file held in 4 or 8 bits are read as those bits, from less than a sixth or a third of the
memory (`_split`, `_by_digits`, or `_quantised`, by what the processor multiplies).
"""

# mypy: ignore-errors

from __future__ import annotations

import ctypes
import platform

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from .machine_code import machine_code


def allow_matrices():
    """Ask the system for the registers that hold tiles; return whether it gives them."""
    request, feature = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return platform.system() == "Linux" and ctypes.CDLL(None).syscall(158, request, feature) == 0


FEATURES = llvm.get_host_cpu_features()
WIDE = bool(FEATURES.get("avx512f"))
BFLOAT16 = WIDE and bool(FEATURES.get("avx512bf16"))
"""Whether this processor multiplies pairs of bfloat16 numbers; without that, bfloat16 is slower than float32."""
MATRICES = BFLOAT16 and bool(FEATURES.get("amx-bf16")) and allow_matrices()
"""Whether this processor multiplies whole tiles of bfloat16 (AMX), and the system lets this process do so."""
LANES = 16 if WIDE else 8 if FEATURES.get("avx2") else 4
VECTORS = 4 if LANES == 4 else 2
WIDTH = LANES * VECTORS
"""Outputs of a block of a packed matrix."""
BYTES = WIDE and bool(FEATURES.get("avx512vnni"))
"""Whether this processor multiplies fours of bytes, as a head in 8 bits needs."""
DIGITS = BYTES and not MATRICES
"""Whether quantised weights are multiplied as bytes (`_by_digits`)."""
QUANTISED = bool(FEATURES.get("f16c")) or platform.machine() in ("aarch64", "arm64")
"""Whether this processor widens float16, as scales of quantised weights are stored."""
GROUP = 32
"""Consecutive inputs of an output whose quantised weights have one scale and one minimum."""
TILE = 12 if WIDE else 5
"""Tokens that one pass over a block serves: their sums stay in registers."""
SPACE = 4 * 4096
"""Bytes before split inputs. `_split` works in them: two tiles of codes of up to 4 KB, and products of two groups. For
`_by_digits` two float32 come first, the APART and the FEWEST of a job."""
DEEP = 16
"""Tokens that one pass over a block serves where sums need not stay in registers."""
LEAST = np.float32(1e-30)
"""A group of inputs whose largest is smaller is rounded as if this were it."""
BEST, PARTS = 8, 8
"""Most probable tokens that a forward finds by itself; parts of a row of logits that threads look through."""
PART_BYTES = 8 * BEST + 8 * 3 + 4 * BEST
"""Bytes of what `look_through` finds in a part, see `pieces_of`."""
DIGITS_BYTES = 128
"""Bytes of a group of inputs that `digits_of_row` writes."""

(
    STOP, TOKENS, KEEP, BASE, COLUMNS, TAIL, CAPACITY, STORE, MASK, TAKEN, LOGITS, GIVEN, FOUND, SLOTS, STATES,
    ARRANGED, SETTLED, RANKED, SHARPNESS, LAYERS, SIZE, HEADS, GROUPS, MLP, HIDDEN_SIZE, ROWS, VOCAB, WEIGHTS,
    VECTOR_WEIGHTS, HEAD, POSITIONS, COS, SIN, HIDDEN, QKV, IDS, EMBEDDING, MIXED, GROWN, PRIVATE, PRIVATE_BYTES,
    HEAD_NORMS, EPS, SCALE, LEFT, SHAPES, JOINT, JOINT_NORMS, PAIRS, HEAD_SCALES, HEAD_SUMS, HEAD_ROW, HEAD_BITS,
    SPLIT_BYTES, APART, FEWEST, PIECES, FIELDS,
) = range(58)  # fmt: skip
"""Places in a job, an int64 array of sizes and addresses. TOKENS to SHARPNESS differ from forward to forward.
SHARPNESS, EPS, SCALE and APART hold float64 bits.
MASK says with a byte each which of the last TAIL columns a token sees; it sees those before them.
JOINT is the matrix of a draft on features, or 0; GIVEN are the features that its tokens come with; FOUND is where the
hidden states go that are asked for, or 0: STATES of them side by side, and SLOTS says of every layer which one is the
state after it, or -1. HEAD_SCALES is 0, or where the steps of the rows of a head in 8 bits are, and HEAD_SUMS the sums
of their numbers. HEAD_ROW are the bytes of an output of the head; HEAD_BITS the bits of its weights where they are
quantised, else 0. ARRANGED is where keys and values are as `lay_out` writes them, the first SETTLED columns already.
Where quantised weights are multiplied `_by_digits`, a group of inputs has FEWEST digits, 1 or 2, and one more if its
largest is more than APART times the root mean square of its row. RANKED is where the most probable tokens go, or 0:
(KEEP, 3, BEST), for each row what `rank` fills its arrays with, of the first VOCAB logits. PIECES is space for
`pieces_of`.
"""

FLOAT32, BFLOAT16_BITS, SIGNED_BYTES, FOUR_BITS, EIGHT_BITS = (
    np.dtype(each) for each in (np.float32, np.uint16, np.uint8, np.int32, np.uint32)
)
"""Kinds of weights, as the dtype of an array by which functions know them. Quantised weights have float32 inputs."""
GROUP_BYTES = {FLOAT32: 128, BFLOAT16_BITS: 64, SIGNED_BYTES: 32, FOUR_BITS: 20, EIGHT_BITS: 36}
"""Bytes that `GROUP` inputs of an output take. Quantised: a scale and a minimum in float16, then the codes."""
QUANTISED_KINDS = types.int32, types.uint32
STEP = {FLOAT32: 1, BFLOAT16_BITS: 2, SIGNED_BYTES: 4, FOUR_BITS: 8, EIGHT_BITS: 4}
"""Inputs of a step of a product."""

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()


class _BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    intrinsic_name = "bf16"

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _BFloat)

    def __hash__(self):
        return hash("bfloat")


def _everywhere(builder, number):
    """Put a number into every lane of a vector."""
    nothing = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    one = builder.insert_element(nothing, number, I32(0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, LANES), [0] * LANES))


def _llvm(builder, name, result, *kinds):
    """Declare an intrinsic function of LLVM by its name, result and arguments."""
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, kinds), f"llvm.{name}")


def _fused(builder):
    """Declare the fused multiplication and addition of vectors of float32."""
    vector = ir.VectorType(F32, LANES)
    return _llvm(builder, f"fma.v{LANES}f32", vector, vector, vector, vector)


def _fetch(builder, pointer):
    """Fetch the cache line at a pointer into the second-level cache."""
    fetch = _llvm(builder, "prefetch.p0", ir.VoidType(), I8.as_pointer(), I32, I32, I32)
    builder.call(fetch, [pointer, I32(0), I32(2), I32(1)])


def _as_product(generate):
    """Make the intrinsic of nine addresses and numbers, see `_product`, for which this function generates code."""

    @intrinsic
    def product(typing, block, stride, inputs, size, count, out, ahead, pace, other):
        return types.void(*(types.int64,) * 9), generate

    return product


def _product(packed=1):
    """Make the intrinsic out[t, :WIDTH] = block @ inputs[t] for `count` tokens (1 to TILE).

    Its arguments are addresses and numbers: of the block, vectors between two of its steps (VECTORS in a packed
    matrix), of the inputs, inputs per output, number of tokens, address of out. While it works it fetches cache lines
    into the second-level cache, at each step those `pace` bytes on from the address `ahead`, and `other` bytes behind
    it. Blocks hold `packed` inputs of every output side by side: 1 of float32, 2 of bfloat16, or 4 signed bytes, whose
    inputs are bytes from 0 to 255 and whose sums are int32.
    """

    @_as_product
    def product(context, builder, signature, arguments):
        block, stride, inputs, size, count, out, ahead, pace, other = arguments
        vector = ir.VectorType(I32 if packed == 4 else F32, LANES)
        stored = ir.VectorType(_BFloat(), 2 * LANES) if packed == 2 else vector
        name = {1: f"fma.v{LANES}f32", 2: "x86.avx512bf16.dpbf16ps.512", 4: "x86.avx512.vpdpbusd.512"}[packed]
        fused = _llvm(builder, name, vector, vector, stored, stored)
        element, steps = (F32, size) if packed == 1 else (I32, builder.lshr(size, I64(packed // 2)))
        blocks = builder.inttoptr(block, stored.as_pointer())
        first = builder.inttoptr(inputs, element.as_pointer())
        target = builder.inttoptr(out, vector.as_pointer())
        lines = [builder.inttoptr(builder.add(ahead, offset), I8.as_pointer()) for offset in (I64(0), other)]
        after = builder.append_basic_block("after")
        switch = builder.switch(count, after)
        for tokens in range(1, TILE + 1):
            start = builder.append_basic_block(f"tokens{tokens}")
            switch.add_case(I64(tokens), start)
            builder.position_at_end(start)
            rows = [builder.gep(first, [builder.mul(steps, I64(row))]) for row in range(tokens)]
            loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(I64)
            step.add_incoming(I64(0), start)
            sums = [[builder.phi(vector) for _ in range(VECTORS)] for _ in range(tokens)]
            place = builder.mul(step, stride)
            weights = [
                builder.load(builder.gep(blocks, [builder.add(place, I64(part))]), align=64) for part in range(VECTORS)
            ]
            for each in lines:
                _fetch(builder, builder.gep(each, [builder.mul(step, pace)]))
            following = []
            for row in range(tokens):
                value = builder.load(builder.gep(rows[row], [step]), align=4)
                spread = builder.bitcast(_everywhere(builder, value), stored)
                terms = [(sums[row][part], spread, weights[part]) for part in range(VECTORS)]
                terms = [term[::-1] for term in terms] if packed == 1 else terms
                following.append([builder.call(fused, term) for term in terms])
            after_step = builder.add(step, I64(1))
            step.add_incoming(after_step, loop)
            for row in range(tokens):
                for part in range(VECTORS):
                    sums[row][part].add_incoming(ir.Constant(vector, [0] * LANES), start)
                    sums[row][part].add_incoming(following[row][part], loop)
            builder.cbranch(builder.icmp_signed("<", after_step, steps), loop, done)
            builder.position_at_end(done)
            for row in range(tokens):
                for part in range(VECTORS):
                    builder.store(following[row][part], builder.gep(target, [I64(row * VECTORS + part)]), align=64)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return product


def places(bits):
    """Say where the codes of 32 / bits inputs stand in a word, as the product that reads them wants it.

    For `_by_digits` four inputs in turn are the lower halves of its bytes, or all of them; for `_split` even inputs are
    in the lower half of a word, odd ones in the upper.
    """
    fields = 32 // bits
    if DIGITS:
        return [each * 8 // bits % fields + each // 4 for each in range(fields)]
    return [each // 2 + fields // 2 * (each % 2) for each in range(fields)]


def _clear(builder, out, count):
    """Set `count` > 0 rows of sums to zero; the builder is left in the block behind the loop."""
    vector, start = ir.VectorType(F32, LANES), builder.block
    clear, behind = builder.append_basic_block("clear"), builder.append_basic_block("cleared")
    builder.branch(clear)
    builder.position_at_end(clear)
    row = builder.phi(I64)
    row.add_incoming(I64(0), start)
    there = builder.add(out, builder.mul(row, I64(4 * WIDTH)))
    for part in range(VECTORS):
        place = builder.inttoptr(builder.add(there, I64(4 * LANES * part)), vector.as_pointer())
        builder.store(ir.Constant(vector, [0.0] * LANES), place, align=64)
    following = builder.add(row, I64(1))
    row.add_incoming(following, clear)
    builder.cbranch(builder.icmp_signed("<", following, count), clear, behind)
    builder.position_at_end(behind)


def _quantised(bits):
    """Make the same intrinsic for weights of 4 or 8 bits, in groups of `GROUP` inputs: minimum + code * scale.

    A group of a block holds, of each output, the scale and the minimum in float16, then `bits` words of int32 with the
    codes of 32 / bits inputs each, in the order of `places`. A code becomes a float32 by two operations on bits: put
    into the first bits of a fraction, under the exponent of 2^bits, it reads 2^bits + code. One fused multiplication
    and addition makes the weight of it, rounded once; `quantised.Codes` has checked that it is the model's to the bit.
    Sums are added in the order of `_product`.
    """

    @_as_product
    def product(context, builder, signature, arguments):
        block, _, inputs, size, count, out, ahead, pace, _ = arguments
        vector, codes = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
        halves = ir.VectorType(ir.HalfType(), LANES)
        fused = _fused(builder)
        first = builder.inttoptr(inputs, F32.as_pointer())
        target = builder.inttoptr(out, vector.as_pointer())
        fields, order = 32 // bits, places(bits)
        group_bytes, part_bytes = WIDTH * (4 + 4 * bits), 4 * LANES
        below = ir.Constant(vector, [-float(2**bits)] * LANES)
        mask = ir.Constant(codes, [(2**bits - 1) << (23 - bits)] * LANES)
        exponent = ir.Constant(codes, [(127 + bits) << 23] * LANES)

        def load(kind, place, offset, bytes_of):
            pointer = builder.inttoptr(builder.add(place, I64(offset)), kind.as_pointer())
            return builder.load(pointer, align=bytes_of)

        after = builder.append_basic_block("after")
        switch = builder.switch(count, after)
        for tokens in range(1, TILE + 1):
            start = builder.append_basic_block(f"tokens{tokens}")
            switch.add_case(I64(tokens), start)
            builder.position_at_end(start)
            rows = [builder.gep(first, [builder.mul(size, I64(row))]) for row in range(tokens)]
            outer, inner, rest, done = (builder.append_basic_block(name) for name in ("group", "word", "rest", "done"))
            builder.branch(outer)
            builder.position_at_end(outer)
            group = builder.phi(I64)
            before = [[builder.phi(vector) for _ in range(VECTORS)] for _ in range(tokens)]
            there = builder.add(block, builder.mul(group, I64(group_bytes)))
            scales, minima = (
                [
                    builder.fpext(load(halves, there, (part + VECTORS * which) * part_bytes // 2, 2 * LANES), vector)
                    for part in range(VECTORS)
                ]
                for which in range(2)
            )
            offsets = [builder.call(fused, (scales[part], below, minima[part])) for part in range(VECTORS)]
            builder.branch(inner)
            builder.position_at_end(inner)
            word = builder.phi(I64)
            sums = [[builder.phi(vector) for _ in range(VECTORS)] for _ in range(tokens)]
            step = builder.add(builder.mul(group, I64(bits)), word)
            coming = builder.add(ahead, builder.mul(step, pace))
            for each in range(3):
                _fetch(builder, builder.inttoptr(builder.add(coming, I64(LINE * each)), I8.as_pointer()))
            place = builder.add(there, builder.mul(word, I64(4 * WIDTH)))
            packed = [load(codes, place, 4 * WIDTH + part * part_bytes, part_bytes) for part in range(VECTORS)]
            inputs_at, now = builder.mul(step, I64(fields)), [list(each) for each in sums]
            for field in range(fields):
                weights = []
                for part in range(VECTORS):
                    up = 23 - bits - bits * order[field]
                    by = ir.Constant(codes, [abs(up)] * LANES)
                    moved = builder.shl(packed[part], by) if up > 0 else builder.lshr(packed[part], by)
                    number = builder.bitcast(builder.or_(builder.and_(moved, mask), exponent), vector)
                    weights.append(builder.call(fused, (number, scales[part], offsets[part])))
                for row in range(tokens):
                    place = builder.gep(rows[row], [builder.add(inputs_at, I64(field))])
                    value = _everywhere(builder, builder.load(place, align=4))
                    now[row] = [builder.call(fused, (weights[part], value, now[row][part])) for part in range(VECTORS)]
            next_word = builder.add(word, I64(1))
            builder.cbranch(builder.icmp_signed("<", next_word, I64(bits)), inner, rest)
            builder.position_at_end(rest)
            next_group = builder.add(group, I64(1))
            builder.cbranch(builder.icmp_signed("<", next_group, builder.lshr(size, I64(5))), outer, done)
            word.add_incoming(I64(0), outer)
            word.add_incoming(next_word, inner)
            group.add_incoming(I64(0), start)
            group.add_incoming(next_group, rest)
            for row in range(tokens):
                for part in range(VECTORS):
                    before[row][part].add_incoming(ir.Constant(vector, [0] * LANES), start)
                    before[row][part].add_incoming(now[row][part], rest)
                    sums[row][part].add_incoming(before[row][part], outer)
                    sums[row][part].add_incoming(now[row][part], inner)
            builder.position_at_end(done)
            for row in range(tokens):
                for part in range(VECTORS):
                    builder.store(now[row][part], builder.gep(target, [I64(row * VECTORS + part)]), align=64)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return product


def _tiled():
    """Make the same intrinsic for bfloat16 by the processor's tiles: DEEP rows, whatever the count.

    Rows past the count are read too, and what becomes of them is not looked at. Sizes are multiples of 32.
    """

    @_as_product
    def product(context, builder, signature, arguments):
        block, _, inputs, size, _, out, ahead, pace, other = arguments
        tile, address = ir.IntType(8), I8.as_pointer()

        def call(name, kinds, *values):
            builder.call(_llvm(builder, f"x86.{name}", ir.VoidType(), *kinds), values)

        def pointer(value):
            return builder.inttoptr(value, address)

        sums, rows, columns = (tile(0), tile(1)), tile(2), (tile(3), tile(4))
        for each in sums:
            call("tilezero", (tile,), each)
        start = builder.block
        loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(I64)  # of 32 inputs: 16 lines of 128 bytes of the block
        step.add_incoming(I64(0), start)
        there = builder.add(block, builder.mul(step, I64(2048)))
        coming = builder.add(ahead, builder.mul(step, builder.mul(pace, I64(16))))
        for each in range(16):
            for offset in (I64(0), other):
                place = builder.add(builder.add(coming, builder.mul(pace, I64(each))), offset)
                _fetch(builder, pointer(place))
        kinds = (tile, address, I64)
        call("tileloadd64", kinds, rows, pointer(builder.add(inputs, builder.mul(step, I64(64)))),
             builder.mul(size, I64(2)))  # fmt: skip
        for half, (sum_, column) in enumerate(zip(sums, columns, strict=True)):
            call("tileloadd64", kinds, column, pointer(builder.add(there, I64(64 * half))), I64(128))
            call("tdpbf16ps", (tile, tile, tile), sum_, rows, column)
        following = builder.add(step, I64(1))
        step.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, builder.lshr(size, I64(5))), loop, done)
        builder.position_at_end(done)
        for half, each in enumerate(sums):
            call("tilestored64", kinds, each, pointer(builder.add(out, I64(64 * half))), I64(128))
        return context.get_dummy_value()

    return product


def _split(bits):
    """Make the same intrinsic for weights of 4 or 8 bits by the processor's tiles, for up to DEEP rows.

    Rows of inputs are those that `split_row` writes: a float32 as the sum of three bfloat16, which loses nothing, and
    the sum of each group. Codes, less half their number, are whole numbers that a bfloat16 holds; eight bits are two
    tiles of four. So a tile's products are exact, its sums float32, and a group's sum is multiplied by its scale.

    The second argument is the address of space for `SPACE` bytes: a tile of codes is made while the one before it is
    multiplied.
    """
    planes = bits // 4

    @_as_product
    def product(context, builder, signature, arguments):
        block, space, inputs, size, count, out, ahead, pace, _ = arguments
        tile, address = ir.IntType(8), I8.as_pointer()
        vector, codes = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
        halves, words = ir.VectorType(ir.HalfType(), LANES), ir.VectorType(ir.IntType(16), 2 * LANES)
        fused, choose = _fused(builder), _llvm(builder, "x86.avx512.permvar.hi.512", words, words, words)
        group_bytes = WIDTH * (4 + 4 * bits)
        tables = [
            ir.Constant(words, [_bits_of_bfloat16(16**plane * (code % 16 - (8 if plane == planes - 1 else 0)))
                                for code in range(32)])
            for plane in range(planes)
        ]  # fmt: skip
        centre = ir.Constant(vector, [2.0 ** (bits - 1)] * LANES)

        def call(name, kinds, *values):
            builder.call(_llvm(builder, f"x86.{name}", ir.VoidType(), *kinds), values)

        def at(place, offset=0):
            return builder.inttoptr(builder.add(place, I64(offset)), address)

        def load(kind, place, offset=0, align=4):
            return builder.load(builder.inttoptr(builder.add(place, I64(offset)), kind.as_pointer()), align=align)

        def unpack(group, buffer):
            there = builder.add(block, builder.mul(group, I64(group_bytes)))
            coming = builder.add(ahead, builder.mul(builder.mul(group, I64(bits)), pace))
            for word in range(bits):
                for each in range(3):
                    _fetch(builder, at(coming, LINE * each))
                coming = builder.add(coming, pace)
                for part in range(VECTORS):
                    packed = load(codes, there, 4 * WIDTH * (word + 1) + 64 * part, 64)
                    for shift in range(4):
                        plane, pair = shift % planes, (4 * word + shift) // planes
                        moved = builder.lshr(packed, ir.Constant(codes, [4 * shift] * LANES)) if shift else packed
                        made = builder.call(choose, [tables[plane], builder.bitcast(moved, words)])
                        place = builder.add(buffer, I64((plane * VECTORS + part) * 1024 + 64 * pair))
                        builder.store(made, builder.inttoptr(place, words.as_pointer()), align=64)

        row_bytes = builder.add(
            builder.mul(size, I64(6)), builder.and_(builder.add(builder.lshr(size, I64(3)), I64(63)), I64(-64))
        )
        sums_at = builder.add(inputs, builder.mul(size, I64(6)))
        groups, kinds = builder.lshr(size, I64(5)), (tile, address, I64)
        products = builder.add(space, I64(2 * 4096))

        def toggled(place, group, size):
            """One of two places, in turn."""
            return builder.add(place, builder.mul(builder.and_(group, I64(1)), I64(size)))

        def keep_sums(group):
            for half in range(2):
                there = at(toggled(products, group, 2048), 64 * half)
                call("tilestored64", kinds, tile(half), there, I64(4 * WIDTH))

        def multiply(group):
            source, buffer = builder.add(inputs, builder.mul(group, I64(64))), toggled(space, group, 2048 * planes)
            for half in range(2):
                call("tilezero", (tile,), tile(half))
            for third in range(3):
                place = builder.add(source, builder.mul(size, I64(2 * third)))
                call("tileloadd64", kinds, tile(2 + third), at(place), row_bytes)
            for plane in range(planes):
                for half in range(2):
                    place = at(buffer, (plane * 2 + half) * 1024)
                    call("tileloadd64", kinds, tile(5 + half), place, I64(64))
                for third in (2, 1, 0):
                    for half in range(2):
                        call("tdpbf16ps", (tile, tile, tile), tile(half), tile(2 + third), tile(5 + half))

        def add(group):
            """Add the products of a group to all rows; the builder is left behind the loop."""
            there = builder.add(block, builder.mul(group, I64(group_bytes)))
            scales, minima = (
                [
                    builder.fpext(load(halves, there, (part + VECTORS * which) * 2 * LANES, 32), vector)
                    for part in range(VECTORS)
                ]
                for which in range(2)
            )
            shifts = [builder.call(fused, (scales[part], centre, minima[part])) for part in range(VECTORS)]
            made, sums = toggled(products, group, 2048), builder.add(sums_at, builder.mul(group, I64(4)))
            before, rows, after = (builder.block, *(builder.append_basic_block(name) for name in ("rows", "after")))
            builder.branch(rows)
            builder.position_at_end(rows)
            row = builder.phi(I64)
            row.add_incoming(I64(0), before)
            total = _everywhere(builder, load(F32, builder.add(sums, builder.mul(row, row_bytes))))
            for part in range(VECTORS):
                offset = builder.add(builder.mul(row, I64(4 * WIDTH)), I64(64 * part))
                place = builder.add(out, offset)
                so_far, found = load(vector, place, 0, 64), load(vector, builder.add(made, offset), 0, 64)
                so_far = builder.call(fused, (scales[part], found, so_far))
                so_far = builder.call(fused, (shifts[part], total, so_far))
                builder.store(so_far, builder.inttoptr(place, vector.as_pointer()), align=64)
            following = builder.add(row, I64(1))
            row.add_incoming(following, rows)
            builder.cbranch(builder.icmp_signed("<", following, count), rows, after)
            builder.position_at_end(after)

        _clear(builder, out, count)
        before = builder.block
        loop, late, last, done = (builder.append_basic_block(name) for name in ("loop", "late", "last", "done"))
        unpack(I64(0), space)
        builder.branch(loop)
        # a group is unpacked, multiplied, stored and added in four successive turns, so that none waits for another
        builder.position_at_end(loop)
        group = builder.phi(I64)
        group.add_incoming(I64(0), before)
        following = builder.add(group, I64(1))
        more = builder.icmp_signed("<", following, groups)
        unpack(builder.select(more, following, group), toggled(space, following, 2048 * planes))
        keep_sums(builder.sub(group, I64(1)))
        multiply(group)
        builder.cbranch(builder.icmp_signed("<", group, I64(2)), last, late)
        builder.position_at_end(late)
        add(builder.sub(group, I64(2)))
        builder.branch(last)
        builder.position_at_end(last)
        group.add_incoming(following, last)
        builder.cbranch(more, loop, done)
        builder.position_at_end(done)
        final = builder.sub(groups, I64(1))
        keep_sums(final)
        second_last, very_last = (builder.append_basic_block(name) for name in ("second_last", "very_last"))
        builder.cbranch(builder.icmp_signed("<", groups, I64(2)), very_last, second_last)
        builder.position_at_end(second_last)
        add(builder.sub(groups, I64(2)))
        builder.branch(very_last)
        builder.position_at_end(very_last)
        add(final)
        return context.get_dummy_value()

    return product


def _by_digits(bits):
    """Make the same intrinsic for weights of 4 or 8 bits by products of bytes, for any number of rows.

    Rows of inputs are those that `digits_of_row` writes: whole numbers with a scale of each group, as one to three
    digits from -128 to 127. Codes are bytes as they are. So a group's sum of code * number is exact in int32, and is
    rounded where it becomes a float32. It does not depend on the other rows. A step multiplies four times as many
    numbers as one of float32, so each digit more takes a quarter of the time of float32.
    """
    quads = GROUP // 4

    @_as_product
    def product(context, builder, signature, arguments):
        block, _, inputs, size, count, out, ahead, pace, _ = arguments
        vector, codes = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
        halves, fused = ir.VectorType(ir.HalfType(), LANES), _fused(builder)
        add_bytes = _llvm(builder, "x86.avx512.vpdpbusd.512", codes, codes, codes, codes)
        group_bytes = WIDTH * (4 + 4 * bits)
        centre, parts = ir.Constant(vector, [2.0 ** (bits - 1)] * LANES), range(VECTORS)

        def at(place, offset, kind):
            return builder.inttoptr(builder.add(place, I64(offset)), kind.as_pointer())

        def load(kind, place, offset=0, align=4):
            return builder.load(at(place, offset, kind), align=align)

        def everywhere(kind, place, offset):
            return _everywhere(builder, load(kind, place, offset))

        def unpacked(there):
            """The bytes of a group: for each part, of four inputs in turn."""
            found = [[] for _ in parts]
            for word in range(bits):
                for part in parts:
                    packed = load(codes, there, 4 * WIDTH * (word + 1) + 4 * LANES * part, 64)
                    if bits == 8:
                        found[part].append(packed)
                        continue
                    nibbles = ir.Constant(codes, [0x0F0F0F0F] * LANES)
                    upper = builder.lshr(packed, ir.Constant(codes, [4] * LANES))
                    found[part] += [builder.and_(each, nibbles) for each in (packed, upper)]
            return found

        _clear(builder, out, count)
        before = builder.block
        names = "group", "rows", "one", "more", "third", "add", "after", "done"
        loop, rows, one, more, third, add, after, done = (builder.append_basic_block(name) for name in names)
        builder.branch(loop)
        builder.position_at_end(loop)
        group = builder.phi(I64)
        group.add_incoming(I64(0), before)
        there = builder.add(block, builder.mul(group, I64(group_bytes)))
        coming = builder.add(ahead, builder.mul(builder.mul(group, I64(bits)), pace))
        for _ in range(bits):
            for each in range(3):
                _fetch(builder, at(coming, LINE * each, I8))
            coming = builder.add(coming, pace)
        scales, minima = (
            [builder.fpext(load(halves, there, (part + VECTORS * which) * 2 * LANES, 32), vector) for part in parts]
            for which in range(2)
        )
        shifts = [builder.call(fused, (scales[part], centre, minima[part])) for part in parts]
        weights, source = unpacked(there), builder.add(inputs, builder.mul(group, I64(DIGITS_BYTES)))
        builder.branch(rows)
        builder.position_at_end(rows)
        row = builder.phi(I64)
        row.add_incoming(I64(0), loop)
        place = builder.add(source, builder.mul(row, builder.mul(size, I64(DIGITS_BYTES // GROUP))))

        def summed(digit):
            so_far = [everywhere(I32, place, 3 * GROUP + 4 * digit)] * VECTORS
            for quad in range(quads):
                four = everywhere(I32, place, GROUP * digit + 4 * quad)
                so_far = [builder.call(add_bytes, (so_far[part], weights[part][quad], four)) for part in parts]
            return so_far

        digits = load(I32, place, 3 * GROUP + 20)
        builder.cbranch(builder.icmp_signed("==", digits, I32(1)), one, more)
        builder.position_at_end(one)
        found = {one: [builder.sitofp(each, vector) for each in summed(0)]}
        builder.branch(add)
        builder.position_at_end(more)
        up = ir.Constant(codes, [8] * LANES)
        both = [builder.add(builder.shl(high, up), middle) for high, middle in zip(summed(0), summed(1), strict=True)]
        found[more] = [builder.sitofp(each, vector) for each in both]
        builder.cbranch(builder.icmp_signed("==", digits, I32(3)), third, add)
        builder.position_at_end(third)
        up = ir.Constant(vector, [256.0] * LANES)
        low = [builder.sitofp(each, vector) for each in summed(2)]
        found[third] = [builder.call(fused, (found[more][part], up, low[part])) for part in parts]
        builder.branch(add)
        builder.position_at_end(add)
        wholes = [builder.phi(vector) for _ in parts]
        step, total = (everywhere(F32, place, 3 * GROUP + 4 * each) for each in (3, 4))
        there = builder.add(out, builder.mul(row, I64(4 * WIDTH)))
        for part in parts:
            for block_before, sums in found.items():
                wholes[part].add_incoming(sums[part], block_before)
            target = at(there, 4 * LANES * part, vector)
            so_far = builder.call(fused, (shifts[part], total, builder.load(target, align=64)))
            so_far = builder.call(fused, (builder.fmul(wholes[part], step), scales[part], so_far))
            builder.store(so_far, target, align=64)
        following = builder.add(row, I64(1))
        row.add_incoming(following, add)
        builder.cbranch(builder.icmp_signed("<", following, count), rows, after)
        builder.position_at_end(after)
        following = builder.add(group, I64(1))
        group.add_incoming(following, after)
        builder.cbranch(builder.icmp_signed("<", following, builder.lshr(size, I64(5))), loop, done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return product


@intrinsic
def digits_of_row(typing, values, size, centre, limit, fewest, address):
    """Write a row of `size` float32 for `_by_digits`: `DIGITS_BYTES` of each group of it; from and to addresses.

    A number is rounded to `fewest` digits, 1 or 2, of 8 bits, by the largest of its group, or to one more where that is
    above `limit`, because in a group with an outlier most numbers are far smaller. First come the 32 highest digits,
    then the middle and the lowest ones, which are 0 where there are fewer; then the sum of the numbers times `-centre`,
    as three int32 with the value of these digits; then two float32, the value of one in the last digit, and that sum;
    then the number of digits. Both float32 are NaN where a number of the group is.
    """

    def generate(context, builder, signature, arguments):
        values, size, centre, limit, fewest, address = arguments
        vector, wide, halves = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES), range(GROUP // LANES)

        def call(name, result, *operands):
            return builder.call(_llvm(builder, name, result, *(each.type for each in operands)), operands)

        def at(place, kind):
            return builder.inttoptr(place, kind.as_pointer())

        def constant(number):
            return ir.Constant(wide, [number] * LANES)

        def folded(operation, parts):
            first, *others = parts
            for other in others:
                first = operation(first, other)
            return first

        start, loop, done = builder.block, builder.append_basic_block("group"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        group = builder.phi(I64)
        group.add_incoming(I64(0), start)
        source = builder.add(values, builder.mul(group, I64(4 * GROUP)))
        target = builder.add(address, builder.mul(group, I64(DIGITS_BYTES)))
        parts = [builder.load(at(builder.add(source, I64(4 * LANES * half)), vector), align=4) for half in halves]
        # floats without their signs are ordered as their bits are, and NaN comes last
        sizes = [builder.and_(builder.bitcast(part, wide), constant(0x7FFFFFFF)) for part in parts]
        sizes.append(constant(int(LEAST.view(np.int32))))
        largest = folded(lambda a, b: call(f"smax.v{LANES}i32", wide, a, b), sizes)
        largest = builder.bitcast(call(f"vector.reduce.smax.v{LANES}i32", I32, largest), F32)
        more = builder.zext(builder.fcmp_ordered(">", largest, limit), I32)
        count = builder.add(builder.trunc(fewest, I32), more)
        up = builder.mul(builder.sub(I32(3), count), I32(8))  # bits that are 0
        top = builder.sitofp(builder.lshr(I32(127 * 65536), up), F32)
        steps = _everywhere(builder, builder.fdiv(top, largest))
        numbers = [builder.fptosi(call(f"rint.v{LANES}f32", vector, builder.fmul(part, steps)), wide) for part in parts]
        total = call(f"vector.reduce.add.v{LANES}i32", I32, folded(builder.add, numbers))
        step = builder.fdiv(largest, top)
        sum_ = builder.fmul(builder.sitofp(total, F32), step)
        for place, note in ((12, step), (16, sum_), (20, count)):
            builder.store(note, at(builder.add(target, I64(3 * GROUP + place)), note.type), align=4)
        numbers, total = [builder.shl(each, _everywhere(builder, up)) for each in numbers], builder.shl(total, up)
        for digit in (2, 1, 0):
            found = numbers
            if digit:
                found = [builder.ashr(builder.shl(each, constant(24)), constant(24)) for each in numbers]
                numbers = [
                    builder.ashr(builder.sub(each, low), constant(8)) for each, low in zip(numbers, found, strict=True)
                ]
            for half, each in zip(halves, found, strict=True):
                place = builder.add(target, I64(GROUP * digit + LANES * half))
                narrow = ir.VectorType(I8, LANES)
                builder.store(builder.trunc(each, narrow), at(place, narrow), align=LANES)
            low = builder.ashr(builder.shl(total, I32(24)), I32(24)) if digit else total
            total = builder.ashr(builder.sub(total, low), I32(8))
            note = builder.mul(low, builder.sub(I32(0), builder.trunc(centre, I32)))
            builder.store(note, at(builder.add(target, I64(3 * GROUP + 4 * digit)), I32), align=4)
        following = builder.add(group, I64(1))
        group.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, builder.lshr(size, I64(5))), loop, done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 3, types.float32, *(types.int64,) * 2), generate


def _bits_of_bfloat16(value):
    """The 16 bits of a number that bfloat16 holds, as LLVM wants a constant."""
    return int(np.float32(value).view(np.uint32) >> 16)


def _tile_call(name, *kinds):
    @intrinsic
    def run(typing, address):
        def generate(context, builder, signature, arguments):
            values = [builder.inttoptr(arguments[0], I8.as_pointer())] if kinds else []
            builder.call(_llvm(builder, f"x86.{name}", ir.VoidType(), *(each.type for each in values)), values)
            return context.get_dummy_value()

        return types.void(types.int64), generate

    return run


multiply_float32 = _product()
multiply_bfloat16 = _tiled() if MATRICES else _product(2) if BFLOAT16 else multiply_float32
multiply_bytes = _product(4) if BYTES else multiply_float32
_by_codes = _split if MATRICES else _by_digits if DIGITS else _quantised
multiply_four_bits, multiply_eight_bits = _by_codes(4), _by_codes(8)
configure_tiles, release_tiles = _tile_call("ldtilecfg", "pointer"), _tile_call("tilerelease")


def tile_shapes():
    """Return configurations of tiles, (DEEP + 1, 64): rows of 64 bytes; in the n-th only weights have DEEP rows."""
    out = np.zeros((DEEP + 1, 64), np.uint8)
    out[:, 0] = 1
    out[:, 16:32:2] = 64  # bytes of a row, 16 bits each
    out[:, 48:56] = DEEP
    out[:, 48:53] = np.arange(DEEP + 1)[:, None]
    return out


@intrinsic
def _pointer(typing, address):
    """A pointer of an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


def _bitcast(result, argument, kind):
    """Make the intrinsic that reads the bits of an argument as a number of another type."""

    @intrinsic
    def cast(typing, bits):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], kind)

        return result(argument), generate

    return cast


_float_of_bits = _bitcast(types.float32, types.int32, F32)
_bits_of_float = _bitcast(types.int32, types.float32, I32)
_double_of_bits = _bitcast(types.float64, types.int64, ir.DoubleType())


@intrinsic
def _arrive(typing, address):
    """Add one to the counter at an address; return what it was."""

    def generate(context, builder, signature, arguments):
        return builder.atomic_rmw("add", builder.inttoptr(arguments[0], I64.as_pointer()), I64(1), "seq_cst")

    return types.int64(types.int64), generate


@intrinsic
def _read(typing, address):
    """The counter at an address, as other threads have written it."""

    def generate(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic
def _pause(typing):
    """Tell the processor that this is a waiting loop."""

    def generate(context, builder, signature, arguments):
        if FEATURES.get("sse2"):
            builder.call(_llvm(builder, "x86.sse2.pause", ir.VoidType()), [])
        return context.get_dummy_value()

    return types.void(), generate


yield_core = types.ExternalFunction("sched_yield", types.int32())
wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
try_wait = types.ExternalFunction("sem_trywait", types.int32(types.int64))
post = types.ExternalFunction("sem_post", types.int32(types.int64))
options = {"error_model": "numpy", "nogil": True}
FREE = {"nsz", "arcp", "contract", "afn", "reassoc"}
"""What may be rounded otherwise. Infinities and NaN stay what they are, so that broken weights are noticed."""
fast = machine_code(fastmath=FREE, **options)
softmax = machine_code(fastmath={*FREE, "nnan"}, **options)  # for a maximum of vectors
LINE = 64
"""Bytes between two counters, so that they lie in cache lines of their own."""
AWAKE = 100_000
"""Turns of a waiting loop before a worker sleeps; a turn is about 50 ns."""
NEVER = np.float32(-1e30)
"""Added to a score that a token does not see."""


@fast
def finish(done, blocks):
    """Wait until all blocks of a stage are done, by whichever thread."""
    spins = 0
    while _read(done) < blocks:
        _pause()
        spins += 1
        if spins % 4096 == 0:
            yield_core()


@fast
def floats(address, count):
    """A float32 array at an address."""
    return carray(_pointer(address), (count,), np.float32)


@fast
def first_block(blocks, thread, threads):
    """The first block of a thread's share; of the thread after the last one, the number of blocks."""
    return blocks * thread // threads


@fast
def claim(shares, blocks, thread, threads):
    """Take the next block of a stage: of this thread's share or, when that is done, of another's; `blocks`: none left.

    A share is one piece of memory, so that a thread reads it in order and what it fetched ahead is its own.
    """
    for turn in range(threads):
        whose = (thread + turn) % threads
        block = first_block(blocks, whose, threads) + _arrive(shares + whose * LINE)
        if block < first_block(blocks, whose + 1, threads):
            return block
    return blocks


@fast
def share(matrix, outputs, bytes_of_row, thread, threads):
    """The address at which a thread's share of a matrix begins."""
    return matrix + first_block(outputs // WIDTH, thread, threads) * WIDTH * bytes_of_row


@fast
def next_block(block, there, following, blocks, block_bytes, thread, threads):
    """The address of what a thread reads after a block: the next block of its share, or what follows its share."""
    inside = first_block(blocks, thread, threads) <= block < first_block(blocks, thread + 1, threads) - 1
    return there + block_bytes if inside else following


def numbers(address, count, kind):
    """An array of what weights of a kind are multiplied with, at an address: float32, or the bits of bfloat16.

    `kind` is any array of one of the kinds of weights.
    """


def number(value):
    """The float32 of a number of the weights' kind."""


def put(numbers, place, value):
    """Store a float32 as a number of the weights' kind, rounded to nearest, ties to even."""


def multiply(block, space, inputs, size, count, out, ahead, pace, other, kind):
    """Multiply one block with up to `deep` rows of inputs, from and to addresses; see `_product` and `_split`."""


def input_bytes(size, kind):
    """Bytes of a row of inputs as `prepared` leaves them."""


def prepared(inputs, n, size, space, kind):
    """Return the address of n rows of inputs as products with weights of this kind take them, in `space` if need be."""


def row_bytes(size, kind):
    """Bytes that the weights of one output take, of so many inputs."""


def steps(size, kind):
    """Steps of a product over so many inputs."""


def deep(kind):
    """Tokens that one pass over a block of the weights' kind serves."""


def begin(shapes, rows, kind):
    """Prepare this thread for products of the weights' kind with so many rows at a time; `shapes` as `tile_shapes`."""


def end(kind):
    """Give back what `begin` took."""


@overload(numbers)
def _numbers(address, count, kind):
    dtype = np.uint16 if kind.dtype == types.uint16 else np.float32
    return lambda address, count, kind: carray(_pointer(address), (count,), dtype)


@overload(number)
def _number(value):
    if value == types.uint16:
        return lambda value: _float_of_bits(np.int32(np.uint32(value) << np.uint32(16)))
    return lambda value: value


@overload(put)
def _put(numbers, place, value):
    if numbers.dtype != types.uint16:

        def store(numbers, place, value):
            numbers[place] = value

    else:

        def store(numbers, place, value):
            bits = np.uint32(_bits_of_float(value))
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            numbers[place] = np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))

    return store


@overload(row_bytes)
def _row_bytes(size, kind):
    bytes_of = GROUP_BYTES[np.dtype(str(kind.dtype))]
    return lambda size, kind: size * bytes_of // 32


@overload(steps)
def _steps(size, kind):
    inputs = STEP[np.dtype(str(kind.dtype))]
    return lambda size, kind: size // inputs


@overload(deep)
def _deep(kind):
    deeply = (MATRICES and kind.dtype == types.uint16) or ((MATRICES or DIGITS) and kind.dtype in QUANTISED_KINDS)
    most = DEEP if deeply else TILE
    return lambda kind: most


@overload(begin)
def _begin(shapes, rows, kind):
    if MATRICES and kind.dtype == types.uint16:
        return lambda shapes, rows, kind: configure_tiles(shapes + 64 * DEEP)
    if MATRICES and kind.dtype in QUANTISED_KINDS:
        return lambda shapes, rows, kind: configure_tiles(shapes + 64 * rows)
    return lambda shapes, rows, kind: None


@overload(end)
def _end(kind):
    if MATRICES and kind.dtype in (types.uint16, *QUANTISED_KINDS):
        return lambda kind: release_tiles(0)
    return lambda kind: None


@overload(multiply)
def _multiply(block, space, inputs, size, count, out, ahead, pace, other, kind):
    product = {
        types.uint16: multiply_bfloat16, types.uint8: multiply_bytes, types.int32: multiply_four_bits,
        types.uint32: multiply_eight_bits,
    }.get(kind.dtype, multiply_float32)  # fmt: skip

    if MATRICES and kind.dtype in QUANTISED_KINDS:

        def call(block, space, inputs, size, count, out, ahead, pace, other, kind):
            product(block, space, inputs, size, count, out, ahead, pace, other)

    else:

        def call(block, space, inputs, size, count, out, ahead, pace, other, kind):
            product(block, VECTORS, inputs, size, count, out, ahead, pace, other)

    return call


@overload(input_bytes)
def _input_bytes(size, kind):
    if MATRICES and kind.dtype in QUANTISED_KINDS:
        return lambda size, kind: split_bytes(size)
    if DIGITS and kind.dtype in QUANTISED_KINDS:
        return lambda size, kind: size // GROUP * DIGITS_BYTES
    return lambda size, kind: size * kind.itemsize


@overload(prepared)
def _prepared(inputs, n, size, space, kind):
    if not ((MATRICES or DIGITS) and kind.dtype in QUANTISED_KINDS):
        return lambda inputs, n, size, space, kind: inputs
    centre = 8 if kind.dtype == types.int32 else 128

    def split(inputs, n, size, space, kind):
        row_of = input_bytes(size, kind)
        for row in range(n):
            source, place = inputs + 4 * row * size, space + SPACE + row * row_of
            if MATRICES:
                split_row(floats(source, size), place)
            else:
                precision = floats(space, 2)
                limit = precision[0] / inverse_rms(floats(source, size), np.float32(0))
                digits_of_row(source, size, centre, limit, np.int64(precision[1]), place)
        return space + SPACE

    return split


@fast
def split_bytes(size):
    """Bytes of a row that `split_row` writes."""
    return 6 * size + (size // 8 + LINE - 1) // LINE * LINE


@fast
def split_row(values, address):
    """Write a row of float32 as three rows of bfloat16 whose sum it is, then the sum of each group of it."""
    size = len(values)
    parts = carray(_pointer(address), (3 * size,), np.uint16)
    first, second, third = parts[:size], parts[size : 2 * size], parts[2 * size :]
    sums = floats(address + 6 * size, size // GROUP)
    for group in range(size // GROUP):
        total = np.float32(0)
        for place in range(group * GROUP, (group + 1) * GROUP):
            value = values[place]
            total += value
            bits = np.uint32(_bits_of_float(value))
            first[place] = np.uint16(bits >> np.uint32(16))
            rest = value - _float_of_bits(np.int32(bits & np.uint32(0xFFFF0000)))
            bits = np.uint32(_bits_of_float(rest))
            second[place] = np.uint16(bits >> np.uint32(16))
            rest -= _float_of_bits(np.int32(bits & np.uint32(0xFFFF0000)))
            third[place] = np.uint16(np.uint32(_bits_of_float(rest)) >> np.uint32(16))
        sums[group] = total


@softmax
def exponential(value):
    """Return e to the power of a float32, to about one unit in the last place; below -87 that of -87."""
    value = min(max(value, np.float32(-87.0)), np.float32(88.0))
    whole = np.floor(value * np.float32(1.4426950408889634) + np.float32(0.5))
    rest = value - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    series = np.float32(1.9875691500e-4)  # of e^rest, by Cephes
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + np.float32(1.0)
    return series * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@fast
def inverse_rms(values, eps):
    """One over the root mean square of an array."""
    total = np.float32(0)
    for place in range(len(values)):
        total += values[place] * values[place]
    return np.float32(1 / np.sqrt(total / np.float32(len(values)) + eps))


@fast
def normalise(hidden, start, count, width, scale, eps, out):
    """Write the RMS norm of `count` rows of `hidden`, from row `start` on."""
    for row in range(count):
        source = hidden[(start + row) * width : (start + row + 1) * width]
        factor = inverse_rms(source, eps)
        for place in range(width):
            put(out, row * width + place, source[place] * factor * scale[place])


@fast
def tiles(n, most):
    """The number of passes over a block for n tokens, at most so many each, and the tokens of a pass, evenly."""
    passes = (n + most - 1) // most
    return passes, (n + passes - 1) // max(1, passes)


@fast
def multiply_rows(block, ahead, space, inputs, size, first, count, number, passes, out, kind):
    """Multiply one block with rows of inputs in pass `number` of several; fetch as much from `ahead` on meanwhile.

    A matrix is read from memory while the block before is worked on, every pass an equal share of it. If the first pass
    fetched all, it would wait for the memory, and the memory for the passes after it.
    """
    count_of_steps = steps(size, kind)
    pace = WIDTH * row_bytes(size, kind) // count_of_steps // passes
    other = 4 * WIDTH - LINE if passes == 1 else 0
    ahead += number * pace * count_of_steps
    multiply(block, space, inputs + first * input_bytes(size, kind), size, count, out, ahead, pace, other, kind)


@fast
def project(
    weights, inputs, n, size, outputs, target, bias, adds, tile_address, kind, taken, thread, threads, following
):
    """Multiply n rows with blocks of a matrix, as long as there are any; store them, with a bias, or add them.

    Args:
        taken: address of the counters of blocks that threads have taken of each share; the one of blocks done comes
            after them, LINE bytes apart.
        following: address of what this thread reads next, after its share.
        weights, inputs: addresses; inputs are (n, size).
        target: (n, outputs) float32.
        bias: (outputs,), or of length 0.
        adds: whether products are added to what the target holds.
        tile_address: of space for DEEP by WIDTH numbers.
    """
    tile, blocks, block_bytes = floats(tile_address, DEEP * WIDTH), outputs // WIDTH, WIDTH * row_bytes(size, kind)
    passes, most = tiles(n, deep(kind))
    space = tile_address + 8 * DEEP * WIDTH
    inputs = prepared(inputs, n, size, space, kind)
    block = claim(taken, blocks, thread, threads)
    while block < blocks:
        there = weights + block * block_bytes
        ahead = next_block(block, there, following, blocks, block_bytes, thread, threads)
        for number in range(passes):
            begin = number * most
            count = min(most, n - begin)
            multiply_rows(there, ahead, space, inputs, size, begin, count, number, passes, tile_address, kind)
            for row in range(count):
                place = (begin + row) * outputs + block * WIDTH
                for lane in range(WIDTH):
                    value = tile[row * WIDTH + lane]
                    if adds:
                        value += target[place + lane]
                    elif len(bias):
                        value += bias[block * WIDTH + lane]
                    target[place + lane] = value
        _arrive(taken + threads * LINE)
        block = claim(taken, blocks, thread, threads)
    finish(taken + threads * LINE, blocks)


@fast
def to_bytes(rows, width, values, out, scales):
    """Round rows of the weights' kind to bytes, 128 being 0; note the value of a step of each row, or NaN."""
    for row in range(rows):
        highest, checked = np.float32(0), np.float32(0)
        for place in range(width):
            value = number(values[row * width + place])
            highest, checked = max(highest, abs(value)), checked + value * np.float32(0)
        scales[row] = highest / np.float32(127) + checked
        steps = np.float32(127) / highest if highest > 0 else np.float32(0)
        for place in range(width):
            out[row * width + place] = np.uint8(np.round(number(values[row * width + place]) * steps) + np.float32(128))


@fast
def project_bytes(
    weights, row_scales, row_sums, inputs, scales, n, size, outputs, target, tile_address, taken, thread, threads
):
    """Multiply n rows of bytes with blocks of a matrix of bytes, as `project` does.

    Args:
        row_scales, row_sums: (outputs,) value of a step, and sum of the numbers, of each row of the matrix.
        inputs: (n * size,) uint8.
        scales: (n,) value of a step of each row of inputs.
    """
    tile, blocks = carray(_pointer(tile_address), (TILE * WIDTH,), np.int32), outputs // WIDTH
    passes, most = tiles(n, TILE)
    block = claim(taken, blocks, thread, threads)
    while block < blocks:
        there = weights + block * WIDTH * size
        ahead = next_block(block, there, weights, blocks, WIDTH * size, thread, threads)
        for number in range(passes):
            begin = number * most
            count = min(most, n - begin)
            multiply_rows(there, ahead, 0, inputs.ctypes.data, size, begin, count, number, passes, tile_address, inputs)
            for row in range(count):
                place = (begin + row) * outputs + block * WIDTH
                for lane in range(WIDTH):
                    output = block * WIDTH + lane
                    whole = np.float32(tile[row * WIDTH + lane] - 128 * row_sums[output])
                    target[place + lane] = whole * row_scales[output] * scales[begin + row]
        _arrive(taken + threads * LINE)
        block = claim(taken, blocks, thread, threads)
    finish(taken + threads * LINE, blocks)


def project_head(bits, weights, inputs, n, size, rows, logits, tile, kind, taken, thread, threads, following):
    """Compute logits; `bits` are those of the head's weights where they are quantised, else 0."""


@overload(project_head)
def _project_head(bits, weights, inputs, n, size, rows, logits, tile, kind, taken, thread, threads, following):
    def same(bits, weights, inputs, n, size, rows, logits, tile, kind, taken, thread, threads, following):
        none = logits[:0]
        project(weights, inputs, n, size, rows, logits, none, False, tile, kind, taken, thread, threads, following)

    def own(bits, weights, inputs, n, size, rows, logits, tile, kind, taken, thread, threads, following):
        none = logits[:0]
        four, eight = carray(_pointer(weights), (0,), np.int32), carray(_pointer(weights), (0,), np.uint32)
        if bits == 4:
            project(weights, inputs, n, size, rows, logits, none, False, tile, four, taken, thread, threads, following)
        elif bits == 8:
            project(weights, inputs, n, size, rows, logits, none, False, tile, eight, taken, thread, threads, following)
        else:
            project(weights, inputs, n, size, rows, logits, none, False, tile, none, taken, thread, threads, following)

    return own if kind.dtype in QUANTISED_KINDS else same


@softmax
def gate_by(gates, ups, count):
    """Replace numbers by silu(gate) * up."""
    for place in range(count):
        value = gates[place]
        gates[place] = value / (np.float32(1) + exponential(-value)) * ups[place]


@fast
def grow(weights, inputs, n, size, mlp, target, tile_address, kind, taken, thread, threads, following):
    """Store silu(gate) * up of n rows in the (n, mlp) target; blocks of gate and up lie in turn."""
    tile, up = floats(tile_address, 2 * DEEP * WIDTH), tile_address + DEEP * WIDTH * 4
    blocks, block_bytes = mlp // WIDTH, WIDTH * row_bytes(size, kind)
    passes, most = tiles(n, deep(kind))
    space = tile_address + 8 * DEEP * WIDTH
    inputs = prepared(inputs, n, size, space, kind)
    block = claim(taken, blocks, thread, threads)
    while block < blocks:
        gate = weights + 2 * block * block_bytes
        ahead = next_block(block, gate, following, blocks, 2 * block_bytes, thread, threads)
        for number in range(passes):
            begin = number * most
            count = min(most, n - begin)
            multiply_rows(gate, ahead, space, inputs, size, begin, count, number, passes, tile_address, kind)
            there, ahead_of_up = gate + block_bytes, ahead + block_bytes
            multiply_rows(there, ahead_of_up, space, inputs, size, begin, count, number, passes, up, kind)
            gate_by(tile, tile[DEEP * WIDTH :], count * WIDTH)
            for row in range(count):
                place = (begin + row) * mlp + block * WIDTH
                for lane in range(WIDTH):
                    put(target, place + lane, tile[row * WIDTH + lane])
        _arrive(taken + threads * LINE)
        block = claim(taken, blocks, thread, threads)
    finish(taken + threads * LINE, blocks)


@fast
def rotate(values, norm, eps, cos, sin):
    """Turn a head's values by their position, after their norm where they have one (`norm` of length 0: none)."""
    if len(norm):
        factor = inverse_rms(values, eps)
        for place in range(len(values)):
            values[place] = values[place] * factor * norm[place]
    half = len(cos)
    first, second = values[:half], values[half:]
    for place in range(half):
        a, b = first[place], second[place]
        first[place] = a * cos[place] - b * sin[place]
        second[place] = b * cos[place] + a * sin[place]


@fast
def see(visible, mask, tail, n, columns):
    """Write what is added to each token's scores, 0 or `NEVER`; (n, columns).

    Args:
        mask: (n, tail), 0 where one of the last columns is not seen; of length 0 where a token sees those before it.
    """
    common = columns - (tail if len(mask) else n)  # columns that all tokens see
    for row in range(n):
        for column in range(common):
            visible[row * columns + column] = np.float32(0)
        for column in range(common, columns):
            seen = mask[row * tail + column - common] != 0 if len(mask) else column - common <= row
            visible[row * columns + column] = np.float32(0) if seen else NEVER


@fast
def lay_out(store, key_place, value_place, columns, size, wide, keys, values, block):
    """Copy WIDTH columns of one head as float32: keys transposed, (size, WIDTH); values as they are, (WIDTH, wide).

    Places past the last column are left as they are.

    Args:
        store: keys and values of a layer; the head's begin at the two places.
        keys, values: space for all blocks of the head.
        block: number of the block.
    """
    first = block * WIDTH
    last = min(first + WIDTH, columns)
    source, target = store[key_place + first * size :], keys[first * size :]
    if last - first == WIDTH:  # a length that is known, and stores in order, take half the time
        for place in range(size):
            for column in range(WIDTH):
                target[place * WIDTH + column] = number(source[column * size + place])
    else:
        for column in range(last - first):
            for place in range(size):
                target[place * WIDTH + column] = number(source[column * size + place])
    for column in range(first, last):
        source, target = store[value_place + column * size :], values[column * wide :]
        for place in range(size):
            target[place] = number(source[place])


@softmax
def largest(values, first, last):
    """The largest of values[first:last], which are no NaN. In four turns, since each comparison waits for its last."""
    top = second = third = fourth = -np.float32(np.inf)
    rest = last - (last - first) % 4
    for place in range(first, rest, 4):
        top, second = max(top, values[place]), max(second, values[place + 1])
        third, fourth = max(third, values[place + 2]), max(fourth, values[place + 3])
    for place in range(rest, last):
        top = max(top, values[place])
    return max(max(top, second), max(third, fourth))


@softmax
def scored(scores, products, visible, tops, scale):
    """Store scores of a query, of some columns at a time; raise the largest so far, lane by lane."""
    for lane in range(len(scores)):
        score = products[lane] * scale + visible[lane]
        scores[lane] = score
        tops[lane] = max(tops[lane], score)


@softmax
def attend(
    queries, count, keys, values, visible, first, share, columns, size, wide, scale, scores, tile_address, following
):  # fmt: skip
    """Write the attention of up to TILE queries over one head's keys to `queries`, in their place.

    Args:
        queries: (count, size) float32; query i belongs to token (first + i) // share.
        keys, values: addresses of blocks that `lay_out` wrote.
        visible: (n, columns) as `see` writes it.
        scores: space for (TILE, columns) numbers.
        tile_address: of space for twice DEEP by WIDTH numbers.
        following: address of what this thread reads next. It is fetched while values are worked on, and values while
            keys are.
    """
    tile, there = floats(tile_address, TILE * WIDTH), queries.ctypes.data
    tops = floats(tile_address + 4 * DEEP * WIDTH, TILE * WIDTH)
    tops[:] = NEVER
    for begin in range(0, columns, WIDTH):
        block, lanes = keys + begin * size * 4, min(WIDTH, columns - begin)
        ahead, pace = values + begin * wide * 4, WIDTH * wide * 4 // size
        multiply_float32(block, VECTORS, there, size, count, tile_address, ahead, pace, LINE)
        for row in range(count):
            seen, place, start = (first + row) // share * columns + begin, row * columns + begin, row * WIDTH
            if lanes == WIDTH:  # a length that is known makes the loop faster
                scored(
                    scores[place : place + WIDTH], tile[start : start + WIDTH], visible[seen : seen + WIDTH],
                    tops[start : start + WIDTH], scale,
                )  # fmt: skip
            else:
                scored(
                    scores[place : place + lanes], tile[start : start + lanes], visible[seen : seen + lanes],
                    tops[start : start + lanes], scale,
                )  # fmt: skip
    for row in range(count):
        own = scores[row * columns : (row + 1) * columns]
        top, total = largest(tops, row * WIDTH, (row + 1) * WIDTH), 0.0
        for column in range(columns):
            below = own[column] - top
            # what is not seen is 0 and no number too small for the processor's fast path
            part = exponential(below) if below > np.float32(-80) else np.float32(0)
            own[column] = part
            total += part  # in float64: columns that are not seen, and where the others lie, change no float32 of it
        share_of_one = np.float32(1 / total)
        for column in range(columns):
            own[column] *= share_of_one
    for begin in range(0, wide, WIDTH):
        block = values + begin * 4
        ahead = following + begin * columns * 4
        multiply_float32(
            block, wide // LANES, scores.ctypes.data, columns, count, tile_address, ahead, WIDTH * 4, LINE
        )  # fmt: skip
        for row in range(count):
            for lane in range(min(WIDTH, size - begin)):
                queries[row * size + begin + lane] = tile[row * WIDTH + lane]


BLOCK = 16 * WIDTH
"""Numbers that are summed in float32."""


@fast
def spread(values, top, sharpness):
    """The sum of e^(sharpness (value - top)), and 0 times the sum of all values: NaN where one is not finite."""
    total, checked = 0.0, np.float32(0)
    for first in range(0, len(values), BLOCK):  # blocks, so that a sum of many small numbers loses nothing
        part = np.float32(0)
        for place in range(first, min(first + BLOCK, len(values))):
            part += exponential(sharpness * (values[place] - top))
            checked += values[place] * np.float32(0)
        total += part
    return total, checked


@fast
def put_in_order(token, value, found, tokens, best):
    """Put a token behind the `found` ones that are no less probable, if there is room; return how many there are."""
    breadth = len(tokens)
    if found == breadth and not value > best[breadth - 1]:
        return found
    place = found if found < breadth else breadth - 1
    while place > 0 and value > best[place - 1]:
        tokens[place], best[place] = tokens[place - 1], best[place - 1]
        place -= 1
    tokens[place], best[place] = token, value
    return min(found + 1, breadth)


@fast
def look_through(values, first, last, sharpness, tokens, best, sums):
    """Find the most probable tokens of a part of a row of logits.

    Args:
        tokens, best: (breadth,) results and their logits; a token of -1 is none.
        sums: (3,) `spread` of the part below its best logit, at sharpness 1 and at this one, and its check.
    """
    breadth, found = len(tokens), 0
    for start in range(first, last, 4 * WIDTH):
        end = min(start + 4 * WIDTH, last)
        if found == breadth and not largest(values, start, end) > best[breadth - 1]:
            continue
        for token in range(start, end):
            found = put_in_order(token, values[token], found, tokens, best)
    tokens[found:] = -1
    sums[:] = 0
    if found:
        part, top = values[first:last], best[0]
        sums[0], sums[2] = spread(part, top, np.float32(1))
        sums[1] = sums[0] if sharpness == 1 else spread(part, top, np.float32(sharpness))[0]


@fast
def join(pieces, bests, sums, sharpness, tokens, shares, sharp):
    """Make a row of `rank` of the (PARTS, breadth) and (PARTS, 3) results of `look_through`."""
    found, total, sharper, checked = 0, 0.0, 0.0, 0.0
    for part in range(PARTS):
        for place in range(pieces.shape[1]):
            if pieces[part, place] >= 0:
                found = put_in_order(pieces[part, place], np.float64(bests[part, place]), found, tokens, shares)
    top = shares[0]
    for part in range(PARTS):
        if pieces[part, 0] >= 0:
            below = bests[part, 0] - top
            total += sums[part, 0] * np.exp(below)
            sharper += sums[part, 1] * np.exp(sharpness * below)
            checked += sums[part, 2]
    for place in range(len(tokens)):
        below = shares[place] - top
        shares[place] = below - np.log(total) + checked
        sharp[place] = sharpness * below - np.log(sharper) + checked


@fast
def pieces_of(address, rows):
    """Space for the results of `look_through` for so many rows: tokens, logits and sums of each part."""
    count = rows * PARTS
    tokens = carray(_pointer(address), (count, BEST), np.int64)
    sums = carray(_pointer(address + 8 * count * BEST), (count, 3), np.float64)
    bests = carray(_pointer(address + 8 * count * (BEST + 3)), (count, BEST), np.float32)
    return tokens, bests, sums


@fast
def rank(logits, sharpness, tokens, shares, sharp):
    """Find the most probable tokens of (f, V) logits, as `sampling.most_probable` describes.

    Args:
        tokens, shares, sharp: (f, breadth) results; log-probabilities are NaN where a logit is not finite.
    """
    breadth, size = tokens.shape[1], logits.shape[1]
    pieces, bests = np.empty((PARTS, breadth), np.int64), np.empty((PARTS, breadth), np.float32)
    sums = np.empty((PARTS, 3))
    for row in range(len(logits)):
        for part in range(PARTS):
            first, last = size * part // PARTS, size * (part + 1) // PARTS
            look_through(logits[row], first, last, sharpness, pieces[part], bests[part], sums[part])
        join(pieces, bests, sums, sharpness, tokens[row], shares[row], sharp[row])


@fast
def invert(logits, node, sharpness, coin):
    """Find where the cumulated e^(sharpness logit) first exceed a share of their sum, as `sampling.Invert` says."""
    values, size, sharpness = logits[node], logits.shape[1], np.float32(sharpness)
    parts, top = np.empty((size + BLOCK - 1) // BLOCK), largest(values, 0, size)
    total, checked = 0.0, 0.0
    for part in range(len(parts)):
        found, check = spread(values[part * BLOCK : min((part + 1) * BLOCK, size)], top, sharpness)
        parts[part] = found
        total += found
        checked += check
    if checked != 0:  # also NaN
        return -1
    left, part = coin * total, 0
    while part < len(parts) - 1 and not left < parts[part]:
        left -= parts[part]
        part += 1
    last = min((part + 1) * BLOCK, size)
    for place in range(part * BLOCK, last):
        left -= exponential(sharpness * (values[place] - top))
        if left < 0:
            return place
    return last - 1


@fast
def softmax_of(logits, node, sharpness, out):
    """Write the (V,) softmax of a row of logits times `sharpness`; return whether all of them are finite."""
    values, size, sharpness = logits[node], logits.shape[1], np.float32(sharpness)
    top = largest(values, 0, size)
    total, checked = 0.0, np.float32(0)
    for first in range(0, size, BLOCK):  # blocks, so that a sum of many small numbers loses nothing
        part = np.float32(0)
        for place in range(first, min(first + BLOCK, size)):
            share = exponential(sharpness * (values[place] - top))
            out[place] = share
            part += share
            checked += values[place] * np.float32(0)
        total += part
    scale = np.float32(1 / total)
    for place in range(size):
        out[place] *= scale
    return checked == 0


@fast
def work(job, thread, threads, kind):
    """Take part in a forward, block by block, until all of it is done. `kind` as for `numbers`.

    Stages follow each other when all blocks are done, whoever did them. So a thread that comes late, or is held up
    between two blocks, holds up nobody; what it finds done it passes by.
    """
    n, keep, base, columns, capacity = job[TOKENS], job[KEEP], job[BASE], job[COLUMNS], job[CAPACITY]
    layers, size, heads, groups, mlp = job[LAYERS], job[SIZE], job[HEADS], job[GROUPS], job[MLP]
    hidden_size, rows, half = job[HIDDEN_SIZE], job[ROWS], job[SIZE] // 2
    eps, scale = np.float32(_double_of_bits(job[EPS])), np.float32(_double_of_bits(job[SCALE]))
    inner, across, of_group = heads * size, (heads + 2 * groups) * size, heads // groups
    width, wide = (columns + WIDTH - 1) // WIDTH * WIDTH, (size + WIDTH - 1) // WIDTH * WIDTH
    hidden, qkv, nothing = floats(job[HIDDEN], n * hidden_size), floats(job[QKV], n * across), floats(job[HIDDEN], 0)
    mixed, grown = numbers(job[MIXED], n * inner, kind), numbers(job[GROWN], n * mlp, kind)
    ids, positions = (carray(_pointer(job[IDS]), (n,), np.int64), carray(_pointer(job[POSITIONS]), (n,), np.int64))
    embedding = numbers(job[EMBEDDING], 1 << 40, kind)
    # a thread's own space: two tiles of products, split inputs, queries of a tile, their scores, what tokens see,
    # normalised rows
    tile = job[PRIVATE] + thread * job[PRIVATE_BYTES]
    queries_place = tile + 8 * DEEP * WIDTH + job[SPLIT_BYTES]
    queries, scores_place = floats(queries_place, TILE * wide), queries_place + 4 * TILE * wide
    scores, visible_place = floats(scores_place, TILE * width), scores_place + 4 * TILE * width
    visible, normed_place = floats(visible_place, n * width), visible_place + 4 * n * width
    arranged_columns = (capacity + WIDTH - 1) // WIDTH * WIDTH
    arranged_bytes = 4 * arranged_columns * (size + wide)  # of a group
    own_group = 0 if thread % 2 == 0 else groups - 1
    normed = numbers(normed_place, 2 * n * hidden_size, kind)
    count_of_vectors = 2 * hidden_size + across + 2 * size
    # where the second to fourth matrix of a layer begins, and the next layer; then this thread's shares of all four
    from_hidden, from_inner, from_mlp = (
        row_bytes(hidden_size, kind), row_bytes(inner, kind), row_bytes(mlp, kind),
    )  # fmt: skip
    mixing = across * from_hidden
    growing = mixing + hidden_size * from_inner
    closing = growing + 2 * mlp * from_hidden
    layer_weights = closing + hidden_size * from_mlp
    own_first = share(job[WEIGHTS], across, from_hidden, thread, threads)
    own_mixing = share(mixing, hidden_size, from_inner, thread, threads)
    own_growing = share(growing, mlp, 2 * from_hidden, thread, threads)
    own_closing = share(closing, hidden_size, from_mlp, thread, threads)
    own_head = share(job[HEAD], rows, job[HEAD_ROW], thread, threads)
    features = floats(job[FOUND], n * job[STATES] * hidden_size)
    slots = carray(_pointer(job[SLOTS]), (layers,), np.int64)
    tail = job[TAIL]
    mask = carray(_pointer(job[MASK]), (n * tail if job[MASK] else 0,), np.uint8)
    begin(job[SHAPES], max(tiles(n, deep(kind))[1], tiles(keep, deep(kind))[1]), kind)
    if DIGITS and job[SPLIT_BYTES]:
        precision = floats(tile + 8 * DEEP * WIDTH, 2)
        precision[0], precision[1] = np.float32(_double_of_bits(job[APART])), np.float32(job[FEWEST])
    seen = False
    passes, _ = tiles(n * of_group, TILE)
    parts = max(passes, min(threads, n * of_group))  # of the queries of a group
    most, taken = (n * of_group + parts - 1) // parts, job[TAKEN]
    pairs, given = floats(job[PAIRS], 2 * n * hidden_size), floats(job[GIVEN], n * hidden_size)
    row = _arrive(taken)
    while row < n:
        for place in range(hidden_size):
            value = number(embedding[ids[row] * hidden_size + place])
            if job[JOINT]:
                pairs[2 * row * hidden_size + place] = value
                pairs[(2 * row + 1) * hidden_size + place] = given[row * hidden_size + place]
            else:
                hidden[row * hidden_size + place] = value
        _arrive(taken + LINE)
        row = _arrive(taken)
    finish(taken + LINE, n)
    taken += 2 * LINE
    if job[JOINT]:
        scales = floats(job[JOINT_NORMS], 2 * hidden_size)  # of tokens, of features
        for row in range(2 * n):
            scale_of_row = scales[row % 2 * hidden_size : (row % 2 + 1) * hidden_size]
            normalise(pairs, row, 1, hidden_size, scale_of_row, eps, normed[row * hidden_size :])
        both = 2 * hidden_size
        project(
            job[JOINT], normed_place, n, both, hidden_size, hidden, nothing, False, tile, kind, taken, thread, threads,
            own_first,
        )  # fmt: skip
        taken += (threads + 1) * LINE
    for layer in range(layers):
        vectors = floats(job[VECTOR_WEIGHTS] + 4 * layer * count_of_vectors, count_of_vectors)
        bias, head_norms = vectors[hidden_size : hidden_size + across], vectors[2 * hidden_size + across :]
        weights = job[WEIGHTS] + layer * layer_weights
        layer_bytes = 2 * groups * capacity * size * kind.itemsize
        store = numbers(job[STORE] + layer * layer_bytes, 2 * groups * capacity * size, kind)
        normalise(hidden, 0, n, hidden_size, vectors, eps, normed)
        project(
            weights, normed_place, n, hidden_size, across, qkv, bias, False, tile, kind, taken, thread, threads,
            job[ARRANGED] + (layer * groups + own_group) * arranged_bytes,
        )  # fmt: skip
        taken += (threads + 1) * LINE
        row = _arrive(taken)
        while row < n:  # turn queries and keys, store keys and values
            turn = positions[row] * half
            cos, sin = floats(job[COS] + 4 * turn, half), floats(job[SIN] + 4 * turn, half)
            for head in range(heads + groups):
                start = row * across + head * size
                norm = head_norms[:size] if head < heads else head_norms[size:]
                rotate(qkv[start : start + size], norm if job[HEAD_NORMS] else nothing, eps, cos, sin)
                if head >= heads:
                    place = ((head - heads) * capacity + base + row) * size
                    for offset in range(size):
                        put(store, place + offset, qkv[start + offset])
                        put(store, groups * capacity * size + place + offset, qkv[start + groups * size + offset])
            _arrive(taken + LINE)
            row = _arrive(taken)
        finish(taken + LINE, n)
        taken += 2 * LINE
        for number_of_group in range(groups):  # threads begin at both ends, so that they share one group at most
            group = abs(own_group - number_of_group)
            part, laid = _arrive(taken + (1 + group) * LINE), False
            arranged = job[ARRANGED] + (layer * groups + group) * arranged_bytes
            coming = arranged + (arranged_bytes if own_group == 0 else -arranged_bytes)
            coming = coming if number_of_group < groups - 1 else weights + own_mixing
            keys = floats(arranged, arranged_columns * size)
            values = floats(arranged + 4 * arranged_columns * size, arranged_columns * wide)
            while part < parts:
                if not seen:
                    seen = True
                    see(visible, mask, tail, n, columns)
                if not laid:  # where two threads share a group, both write the same
                    laid, place = True, group * capacity * size
                    for block in range(job[SETTLED] // WIDTH, width // WIDTH):
                        lay_out(
                            store, place, groups * capacity * size + place, columns, size, wide, keys, values, block
                        )
                first = part * most
                count = min(most, n * of_group - first)
                for row in range(count):
                    start = (first + row) // of_group * across + (group * of_group + (first + row) % of_group) * size
                    for offset in range(size):
                        queries[row * size + offset] = qkv[start + offset]
                attend(
                    queries, count, keys.ctypes.data, values.ctypes.data, visible, first, of_group, columns, size, wide,
                    scale, scores, tile, coming,
                )  # fmt: skip
                for row in range(count):
                    place = (first + row) // of_group * inner + (group * of_group + (first + row) % of_group) * size
                    for offset in range(size):
                        put(mixed, place + offset, queries[row * size + offset])
                _arrive(taken)
                part = _arrive(taken + (1 + group) * LINE)
        finish(taken, groups * parts)
        taken += (1 + groups) * LINE
        project(
            weights + mixing, job[MIXED], n, inner, hidden_size, hidden, nothing, True, tile, kind, taken, thread,
            threads, weights + own_growing,
        )  # fmt: skip
        taken += (threads + 1) * LINE
        normalise(hidden, 0, n, hidden_size, vectors[hidden_size + across :], eps, normed)
        grow(
            weights + growing, normed_place, n, hidden_size, mlp, grown, tile, kind, taken, thread, threads,
            weights + own_closing,
        )  # fmt: skip
        taken += (threads + 1) * LINE
        project(
            weights + closing, job[GROWN], n, mlp, hidden_size, hidden, nothing, True, tile, kind, taken, thread,
            threads, own_first + (layer + 1) * layer_weights if layer < layers - 1 else own_head,
        )  # fmt: skip
        taken += (threads + 1) * LINE
        if layer < layers - 1 and slots[layer] >= 0:
            row = _arrive(taken)
            while row < n:
                place = (row * job[STATES] + slots[layer]) * hidden_size
                features[place : place + hidden_size] = hidden[row * hidden_size : (row + 1) * hidden_size]
                _arrive(taken + LINE)
                row = _arrive(taken)
            finish(taken + LINE, n)
            taken += 2 * LINE
    last_norm = floats(job[VECTOR_WEIGHTS] + 4 * layers * count_of_vectors, hidden_size)
    if job[FOUND]:
        row = _arrive(taken)
        while row < n:
            place = (row * job[STATES] + slots[layers - 1]) * hidden_size
            normalise(hidden, row, 1, hidden_size, last_norm, eps, features[place:])
            _arrive(taken + LINE)
            row = _arrive(taken)
        finish(taken + LINE, n)
        taken += 2 * LINE
    normalise(hidden, n - keep, keep, hidden_size, last_norm, eps, normed)
    logits = floats(job[LOGITS], keep * rows)
    if keep == 0:
        pass  # part of a longer prompt
    elif BYTES and job[HEAD_SCALES]:
        bytes_place = normed_place + n * hidden_size * kind.itemsize
        rounded = carray(_pointer(bytes_place), (keep * hidden_size,), np.uint8)
        scales = floats(bytes_place + keep * hidden_size, keep)
        to_bytes(keep, hidden_size, normed, rounded, scales)
        row_scales, row_sums = floats(job[HEAD_SCALES], rows), carray(_pointer(job[HEAD_SUMS]), (rows,), np.int32)
        project_bytes(
            job[HEAD], row_scales, row_sums, rounded, scales, keep, hidden_size, rows, logits, tile, taken, thread,
            threads,
        )  # fmt: skip
        taken += (threads + 1) * LINE
    else:
        project_head(
            job[HEAD_BITS], job[HEAD], normed_place, keep, hidden_size, rows, logits, tile, kind, taken, thread,
            threads, own_first,
        )  # fmt: skip
        taken += (threads + 1) * LINE
    if job[RANKED]:
        vocab, sharpness = job[VOCAB], _double_of_bits(job[SHARPNESS])
        pieces, bests, sums = pieces_of(job[PIECES], keep)
        piece = _arrive(taken)
        while piece < keep * PARTS:
            row, part = piece // PARTS, piece % PARTS
            values = logits[row * rows : row * rows + vocab]
            first, last = vocab * part // PARTS, vocab * (part + 1) // PARTS
            look_through(values, first, last, sharpness, pieces[piece], bests[piece], sums[piece])
            _arrive(taken + LINE)
            piece = _arrive(taken)
        finish(taken + LINE, keep * PARTS)
        if thread == 0:
            tokens = carray(_pointer(job[RANKED]), (keep, 3, BEST), np.int64)
            shares = carray(_pointer(job[RANKED]), (keep, 3, BEST), np.float64)
            for row in range(keep):
                mine = slice(row * PARTS, (row + 1) * PARTS)
                join(
                    pieces[mine], bests[mine], sums[mine], sharpness, tokens[row, 0], shares[row, 1], shares[row, 2]
                )  # fmt: skip
    end(kind)
    if thread:
        _arrive(job[LEFT])


def counters(layers, groups, threads):
    """Return how many counters a forward needs, LINE bytes apart: of tokens, joint, layers, features, head, ranking."""
    matrix = threads + 1
    return 2 + matrix + layers * (4 * matrix + 2 * 2 + 1 + groups) + 2 + matrix + 2


@fast
def called(job, signals, thread):
    """Wait for a signal; return whether there is a forward to take part in, and not `job[STOP]`.

    A worker waits awake for some milliseconds, longer than the host takes between two forwards of a text: a core that
    sleeps comes back late, and the next forward begins without it. Where other threads run a forward, it sleeps: a
    target's weights may be of another kind than the draft's, and its threads need the cores.
    """
    spins = 0
    while try_wait(signals[thread]) != 0:
        _pause()
        spins += 1
        if spins % 256 == 0:
            yield_core()
        if spins == AWAKE or (spins % 256 == 0 and _read(signals[0]) != signals[1]):
            wait(signals[thread])
            break
    return not job[STOP]


@fast
def run(job, thread, threads, kind, signals):
    """As thread 0, run a forward and return how many others took part; as another, serve one forward after another.

    Thread 0 wakes the others and takes part. A core that sleeps may need longer to come back than a small forward
    lasts. Who has not come by its end is called back, so that it does not enter a forward that is over. Both are one
    function, because compiling `work` into two would take a machine half as long again.
    """
    if thread == 0 and threads > 1:
        carray(_pointer(signals[0]), (1,), np.int64)[0] = signals[1]
        for other in range(1, threads):
            post(signals[other])
    while thread == 0 or called(job, signals, thread):
        work(job, thread, threads, kind)
        if thread == 0:
            break
    came = 0
    if thread == 0:
        for other in range(1, threads):
            if try_wait(signals[other]) != 0:
                came += 1
    return came


@fast
def lay(ids, parents, queued, position, places, seen):
    """Say where the tokens of a level stand and what they see.

    Args:
        ids: (q + f,) queued tokens, then nodes.
        parents: (p + f,) of all pending nodes, -1 below the text; without a queue the first p have been read before.
        queued: q.
        position: of a node below the text.
        places: (q + f,) receives positions.
        seen: (q + f) * (q + p + f) bytes, which receive what each token sees of the last columns.
    """
    nodes, before = len(ids) - queued, len(parents) - (len(ids) - queued)
    tail = queued + len(parents)
    for row in range(queued):
        places[row] = position - queued + row
        for column in range(tail):
            seen[row * tail + column] = column <= row
    for row in range(nodes):
        line, node, depth = (queued + row) * tail, before + row, -1
        for column in range(tail):
            seen[line + column] = column < queued
        while node >= 0:
            seen[line + queued + node] = 1
            node, depth = parents[node], depth + 1
        places[queued + row] = position + depth


@fast
def give(features, known, parents, nodes, given):
    """Gather what tokens come with: (q, h) features of the queue, then what is known of the nodes' parents.

    `known` holds the feature of the text's last token, then one of each pending node; `given` is (q + f, h) float32.
    """
    queued, before = len(features), len(parents) - nodes
    for row in range(queued + nodes):
        for place in range(known.shape[1]):
            source = features[row, place] if row < queued else known[parents[before + row - queued] + 1, place]
            given[row, place] = number(source)


@fast
def keep_states(found, known, before):
    """Store the (f, h) float32 states of new nodes behind those `before` them."""
    for row in range(len(found)):
        for place in range(known.shape[1]):
            put(known[before + 1 + row], place, found[row, place])


@fast
def fuse(states, norms, weights, eps, shapes, apart, fewest, normed, fused, tile, counters, kind):
    """Make (n, h) features of (n, k h) states: the last one, and a map of the norms of the others added.

    Args:
        states, norms, fused: float32; the others' norms side by side.
        weights: address of the map, packed.
        apart, fewest: see APART and FEWEST of a job.
        normed: space for (n + DEEP, (k - 1) h) numbers of the weights' kind.
        tile: space for two tiles of DEEP by WIDTH numbers, and for split inputs.
        counters: zeros, for `project`.
        kind: of the weights, as for `numbers`.
    """
    width, rows = fused.shape[1], len(states)
    others = states.shape[1] // width - 1
    flat, sums = states.reshape(-1), fused.reshape(-1)
    for row in range(rows):
        for each in range(others):
            scale, out = norms[each * width : (each + 1) * width], normed[(row * others + each) * width :]
            normalise(flat, row * (others + 1) + each, 1, width, scale, eps, out)
        fused[row] = states[row, others * width :]
    begin(shapes, tiles(rows, deep(kind))[1], kind)
    tile[2 * DEEP * WIDTH], tile[2 * DEEP * WIDTH + 1] = apart, fewest  # where `prepared` looks for them
    inputs, space, taken = normed.ctypes.data, tile.ctypes.data, counters.ctypes.data
    project(weights, inputs, rows, others * width, width, sums, tile[:0], True, space, kind, taken, 0, 1, weights)
    end(kind)
