"""Machine code for a forward of few tokens of the Llama family: one call a forward, whatever the number of layers.

numba compiles this file at the first use and keeps the result on disk; no compiler need be installed. All threads run
`work` and meet at barriers, six in a layer. Matrices are packed in blocks of `WIDTH` outputs, so that a product reads
each weight once, in order, for up to `TILE` tokens; that reading is what bounds its time. In bfloat16, inputs are
rounded to it before a product, sums and everything between products are float32.
"""

# mypy: ignore-errors

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

FEATURES = llvm.get_host_cpu_features()
WIDE = bool(FEATURES.get("avx512f"))
BFLOAT16 = WIDE and bool(FEATURES.get("avx512bf16"))
"""Whether this processor multiplies pairs of bfloat16 numbers; without that, bfloat16 is slower than float32."""
LANES = 16 if WIDE else 8 if FEATURES.get("avx2") else 4
VECTORS = 4 if LANES == 4 else 2
WIDTH = LANES * VECTORS
"""Outputs of a block of a packed matrix."""
TILE = 8 if WIDE else 5
"""Tokens that one pass over a block serves: their sums stay in registers."""

(
    STOP, TOKENS, KEEP, BASE, COLUMNS, CAPACITY, LAYERS, SIZE, HEADS, GROUPS, MLP, WIDTH_OF_HIDDEN, ROWS, HALF,
    WEIGHTS, VECTOR_WEIGHTS, HEAD, STORE, MASK, POSITIONS, COS, SIN, HIDDEN, QKV, MIXED, GROWN, LOGITS, PRIVATE,
    PRIVATE_BYTES, HEAD_NORMS, EPS, SCALE, BARRIER, FIELDS,
) = range(34)  # fmt: skip
"""Places in a job, an int64 array: sizes, then addresses. EPS and SCALE hold float64 bits."""

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


def _product(pairs):
    """Make the intrinsic out[t, :WIDTH] = block @ inputs[t] for `count` tokens (1 to TILE).

    Its arguments are addresses and numbers: of the block, of inputs and the distance of their rows in elements, inputs
    per output, number of tokens, address of out. `pairs` makes the bfloat16 form, whose blocks hold two inputs of every
    output side by side.
    """

    @intrinsic
    def multiply(typing, block, inputs, stride, size, count, out):
        def generate(context, builder, signature, arguments):
            block, inputs, stride, size, count, out = arguments
            vector = ir.VectorType(F32, LANES)
            if pairs:
                stored = ir.VectorType(_BFloat(), 2 * LANES)
                fused = cgutils.get_or_insert_function(
                    builder.module,
                    ir.FunctionType(vector, (vector, stored, stored)),
                    "llvm.x86.avx512bf16.dpbf16ps.512",
                )
            else:
                stored = vector
                fused = cgutils.get_or_insert_function(
                    builder.module, ir.FunctionType(vector, (vector,) * 3), f"llvm.fma.v{LANES}f32"
                )
            element, steps = (I32, builder.lshr(size, I64(1))) if pairs else (F32, size)
            stride = builder.lshr(stride, I64(1)) if pairs else stride
            blocks = builder.inttoptr(block, stored.as_pointer())
            first = builder.inttoptr(inputs, element.as_pointer())
            target = builder.inttoptr(out, vector.as_pointer())
            splat = ir.Constant(ir.VectorType(I32, LANES), [0] * LANES)
            after = builder.append_basic_block("after")
            switch = builder.switch(count, after)
            for tokens in range(1, TILE + 1):
                start = builder.append_basic_block(f"tokens{tokens}")
                switch.add_case(I64(tokens), start)
                builder.position_at_end(start)
                rows = [builder.gep(first, [builder.mul(stride, I64(row))]) for row in range(tokens)]
                loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
                builder.branch(loop)
                builder.position_at_end(loop)
                step = builder.phi(I64)
                step.add_incoming(I64(0), start)
                sums = [[builder.phi(vector) for _ in range(VECTORS)] for _ in range(tokens)]
                weights = [
                    builder.load(
                        builder.gep(blocks, [builder.add(builder.mul(step, I64(VECTORS)), I64(part))]), align=64
                    )
                    for part in range(VECTORS)
                ]
                following = []
                for row in range(tokens):
                    value = builder.load(builder.gep(rows[row], [step]), align=4)
                    kind = ir.VectorType(element, LANES)
                    spread = builder.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
                    spread = builder.shuffle_vector(spread, ir.Constant(kind, ir.Undefined), splat)
                    spread = builder.bitcast(spread, stored) if pairs else spread
                    terms = [
                        (sums[row][part], weights[part], spread) if pairs else (weights[part], spread, sums[row][part])
                        for part in range(VECTORS)
                    ]
                    following.append([builder.call(fused, term) for term in terms])
                after_step = builder.add(step, I64(1))
                step.add_incoming(after_step, loop)
                for row in range(tokens):
                    for part in range(VECTORS):
                        sums[row][part].add_incoming(ir.Constant(vector, [0.0] * LANES), start)
                        sums[row][part].add_incoming(following[row][part], loop)
                builder.cbranch(builder.icmp_signed("<", after_step, steps), loop, done)
                builder.position_at_end(done)
                for row in range(tokens):
                    for part in range(VECTORS):
                        builder.store(following[row][part], builder.gep(target, [I64(row * VECTORS + part)]), align=64)
                builder.branch(after)
            builder.position_at_end(after)
            return context.get_dummy_value()

        return types.void(*(types.int64,) * 6), generate

    return multiply


multiply_float32 = _product(pairs=False)
multiply_bfloat16 = _product(pairs=True) if BFLOAT16 else multiply_float32


@intrinsic
def _pointer(typing, address):
    """A pointer of an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def _float_of_bits(typing, bits):
    """The float32 that these 32 bits are."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], F32)

    return types.float32(types.int32), generate


@intrinsic
def _bits_of_float(typing, value):
    """The 32 bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], I32)

    return types.int32(types.float32), generate


@intrinsic
def _double_of_bits(typing, bits):
    """The float64 that these 64 bits are."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


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
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


yield_core = types.ExternalFunction("sched_yield", types.int32())
wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
post = types.ExternalFunction("sem_post", types.int32(types.int64))
fast = njit(fastmath=True, error_model="numpy", nogil=True, cache=True)
inline = njit(fastmath=True, error_model="numpy", nogil=True, cache=True, inline="never")


@fast
def meet(counter, threads):
    """Wait until all threads are here."""
    if threads == 1:
        return
    goal = (_arrive(counter) // threads + 1) * threads
    spins = 0
    while _read(counter) < goal:
        _pause()
        spins += 1
        if spins % 4096 == 0:
            yield_core()


@fast
def floats(address, count):
    """A float32 array at an address."""
    return carray(_pointer(address), (count,), np.float32)


@fast
def halves(address, count):
    """An array of bfloat16 bits at an address."""
    return carray(_pointer(address), (count,), np.uint16)


@fast
def widened(bits):
    """The float32 of bfloat16 bits."""
    return _float_of_bits(np.int32(np.uint32(bits) << np.uint32(16)))


@fast
def rounded(value):
    """The bfloat16 bits nearest to a float32, ties to even."""
    bits = np.uint32(_bits_of_float(value))
    return np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@fast
def exponential(value):
    """E to the power of a float32, to about one unit in the last place; 0 below -87."""
    value = min(max(value, np.float32(-87.0)), np.float32(88.0))
    whole = np.floor(value * np.float32(1.4426950408889634) + np.float32(0.5))
    rest = value - whole * np.float32(0.693359375) + whole * np.float32(2.12194440e-4)
    sum_ = np.float32(1.9875691500e-4)
    sum_ = sum_ * rest + np.float32(1.3981999507e-3)
    sum_ = sum_ * rest + np.float32(8.3334519073e-3)
    sum_ = sum_ * rest + np.float32(4.1665795894e-2)
    sum_ = sum_ * rest + np.float32(1.6666665459e-1)
    sum_ = sum_ * rest + np.float32(5.0000001201e-1)
    sum_ = sum_ * rest * rest + rest + np.float32(1.0)
    return sum_ * _float_of_bits((np.int32(whole) + np.int32(127)) << np.int32(23))


@fast
def normalise(hidden, start, count, width, scale, eps, out, half):
    """Write the RMS norm of `count` rows from row `start` to an address, as float32 or as bfloat16."""
    wide, narrow = floats(out, count * width), halves(out, count * width)
    for row in range(count):
        source = hidden[(start + row) * width : (start + row + 1) * width]
        total = np.float32(0)
        for place in range(width):
            total += source[place] * source[place]
        factor = np.float32(1 / np.sqrt(total / np.float32(width) + eps))
        if half:
            to = narrow[row * width : (row + 1) * width]
            for place in range(width):
                to[place] = rounded(source[place] * factor * scale[place])
        else:
            into = wide[row * width : (row + 1) * width]
            for place in range(width):
                into[place] = source[place] * factor * scale[place]


@fast
def multiply(block, inputs, stride, size, count, out, half):
    """Multiply one block with up to TILE rows of inputs."""
    if half:
        multiply_bfloat16(block, inputs, stride, size, count, out)
    else:
        multiply_float32(block, inputs, stride, size, count, out)


@fast
def rotate(values, start, norm, normed, eps, cos, sin, position, half_size):
    """Turn a head's (2 * half_size,) values by their position, after its norm where it has one."""
    if normed:
        total = np.float32(0)
        for place in range(2 * half_size):
            total += values[start + place] * values[start + place]
        factor = np.float32(1 / np.sqrt(total / np.float32(2 * half_size) + eps))
        for place in range(2 * half_size):
            values[start + place] = values[start + place] * factor * norm[place]
    first, second = values[start : start + half_size], values[start + half_size : start + 2 * half_size]
    c, s = (
        cos[position * half_size : (position + 1) * half_size],
        sin[position * half_size : (position + 1) * half_size],
    )
    for place in range(half_size):
        a, b = first[place], second[place]
        first[place] = a * c[place] - b * s[place]
        second[place] = b * c[place] + a * s[place]


@fast
def attend(query, keys, values, mask, masked, columns, size, scale, scores, out):
    """Write one head's attention of one token over `columns` keys to `out`."""
    top = np.float32(-np.inf)
    for column in range(columns):
        key = keys[column * size : (column + 1) * size]
        score = np.float32(0)
        for place in range(size):
            score += query[place] * key[place]
        score *= scale
        if masked:
            score += mask[column]
        scores[column] = score
        top = max(top, score)
    total = np.float32(0)
    for column in range(columns):
        share = exponential(scores[column] - top)
        scores[column] = share
        total += share
    for place in range(size):
        out[place] = 0
    for column in range(columns):
        share = scores[column]
        if share > 0:
            value = values[column * size : (column + 1) * size]
            for place in range(size):
                out[place] += share * value[place]
    for place in range(size):
        out[place] /= total


@fast
def attend_half(query, keys, values, mask, masked, columns, size, scale, scores, out):
    """The same over keys, values and mask in bfloat16."""
    top = np.float32(-np.inf)
    for column in range(columns):
        key = keys[column * size : (column + 1) * size]
        score = np.float32(0)
        for place in range(size):
            score += query[place] * widened(key[place])
        score *= scale
        if masked:
            score += widened(mask[column])
        scores[column] = score
        top = max(top, score)
    total = np.float32(0)
    for column in range(columns):
        share = exponential(scores[column] - top)
        scores[column] = share
        total += share
    for place in range(size):
        out[place] = 0
    for column in range(columns):
        share = scores[column]
        if share > 0:
            value = values[column * size : (column + 1) * size]
            for place in range(size):
                out[place] += share * widened(value[place])
    for place in range(size):
        out[place] /= total


@fast
def work(job, thread, threads, half):
    """Do one thread's part of a forward; all return when all are done."""
    n, keep, base, columns, capacity = job[TOKENS], job[KEEP], job[BASE], job[COLUMNS], job[CAPACITY]
    layers, size, heads, groups, mlp = job[LAYERS], job[SIZE], job[HEADS], job[GROUPS], job[MLP]
    width, rows, half_size = job[WIDTH_OF_HIDDEN], job[ROWS], job[HALF]
    weights, counter = job[WEIGHTS], job[BARRIER]
    eps, scale = np.float32(_double_of_bits(job[EPS])), np.float32(_double_of_bits(job[SCALE]))
    inner, across, share = heads * size, (heads + 2 * groups) * size, heads // groups
    element = 2 if half else 4
    hidden, qkv = floats(job[HIDDEN], n * width), floats(job[QKV], n * across)
    positions = carray(_pointer(job[POSITIONS]), (n,), np.int64)
    cos, sin = floats(job[COS], half_size << 40), floats(job[SIN], half_size << 40)
    private = job[PRIVATE] + thread * job[PRIVATE_BYTES]
    tile_address, scores_address = private, private + 2 * TILE * WIDTH * 4
    normed = scores_address + 4 * ((columns + 31) // 16 * 16)
    tile = floats(tile_address, 2 * TILE * WIDTH)
    vector_bytes = 4 * (2 * width + across + 2 * size)
    masked = job[MASK] != 0
    for layer in range(layers):
        vectors = floats(job[VECTOR_WEIGHTS] + layer * vector_bytes, 2 * width + across + 2 * size)
        bias = vectors[width : width + across]
        # queries, keys, values
        normalise(hidden, 0, n, width, vectors[:width], eps, normed, half)
        blocks = across // WIDTH
        for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
            for begin in range(0, n, TILE):
                count = min(TILE, n - begin)
                multiply(
                    weights + block * WIDTH * width * element, normed + begin * width * element, width, width, count,
                    tile_address, half,
                )  # fmt: skip
                for row in range(count):
                    place = (begin + row) * across + block * WIDTH
                    for lane in range(WIDTH):
                        qkv[place + lane] = tile[row * WIDTH + lane] + bias[block * WIDTH + lane]
        weights += across * width * element
        meet(counter, threads)
        # turn queries and keys, store keys and values
        key_norm, query_norm = vectors[2 * width + across + size :], vectors[2 * width + across :]
        store = job[STORE] + layer * 2 * groups * capacity * size * element
        for item in range(thread, n * (heads + groups), threads):
            row, head = item // (heads + groups), item % (heads + groups)
            start = row * across + head * size
            norm = query_norm if head < heads else key_norm
            rotate(qkv, start, norm, job[HEAD_NORMS] != 0, eps, cos, sin, positions[row], half_size)
            if head >= heads:
                key_place = ((head - heads) * capacity + base + row) * size
                value_place = key_place + groups * capacity * size
                if half:
                    stored = halves(store, 2 * groups * capacity * size)
                    for place in range(size):
                        stored[key_place + place] = rounded(qkv[start + place])
                        stored[value_place + place] = rounded(qkv[start + groups * size + place])
                else:
                    kept = floats(store, 2 * groups * capacity * size)
                    for place in range(size):
                        kept[key_place + place] = qkv[start + place]
                        kept[value_place + place] = qkv[start + groups * size + place]
        meet(counter, threads)
        # attention
        for item in range(thread, n * heads, threads):
            row, head = item // heads, item % heads
            group = head // share
            seen = columns if masked else base + row + 1
            query = qkv[row * across + head * size : row * across + (head + 1) * size]
            first, last = group * capacity * size, (groups + group) * capacity * size
            result = floats(scores_address, columns)  # replaced below; keeps numba's types plain
            if half:
                stored = halves(store, 2 * groups * capacity * size)
                mixed_tile = tile[:size]
                attend_half(
                    query, stored[first:], stored[last:], halves(job[MASK] + 2 * row * columns, columns), masked, seen,
                    size, scale, result, mixed_tile,
                )  # fmt: skip
                target = halves(job[MIXED] + (row * inner + head * size) * 2, size)
                for place in range(size):
                    target[place] = rounded(mixed_tile[place])
            else:
                kept = floats(store, 2 * groups * capacity * size)
                attend(
                    query, kept[first:], kept[last:], floats(job[MASK] + 4 * row * columns, columns), masked, seen,
                    size, scale, result, floats(job[MIXED] + (row * inner + head * size) * 4, size),
                )  # fmt: skip
        meet(counter, threads)
        # output, added to the residual stream
        blocks = width // WIDTH
        for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
            for begin in range(0, n, TILE):
                count = min(TILE, n - begin)
                multiply(
                    weights + block * WIDTH * inner * element, job[MIXED] + begin * inner * element, inner, inner,
                    count, tile_address, half,
                )  # fmt: skip
                for row in range(count):
                    place = (begin + row) * width + block * WIDTH
                    for lane in range(WIDTH):
                        hidden[place + lane] += tile[row * WIDTH + lane]
        weights += width * inner * element
        meet(counter, threads)
        # gate and up
        normalise(hidden, 0, n, width, vectors[width + across :], eps, normed, half)
        blocks = mlp // WIDTH
        for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
            for begin in range(0, n, TILE):
                count = min(TILE, n - begin)
                gate, up = weights + 2 * block * WIDTH * width * element, tile_address + TILE * WIDTH * 4
                inputs = normed + begin * width * element
                multiply(gate, inputs, width, width, count, tile_address, half)
                multiply(gate + WIDTH * width * element, inputs, width, width, count, up, half)
                for row in range(count):
                    place = (begin + row) * mlp + block * WIDTH
                    grown, bits = floats(job[GROWN] + 4 * place, WIDTH), halves(job[GROWN] + 2 * place, WIDTH)
                    for lane in range(WIDTH):
                        value = tile[row * WIDTH + lane]
                        value = value / (np.float32(1) + exponential(-value)) * tile[(TILE + row) * WIDTH + lane]
                        tile[row * WIDTH + lane] = value
                    if half:
                        for lane in range(WIDTH):
                            bits[lane] = rounded(tile[row * WIDTH + lane])
                    else:
                        for lane in range(WIDTH):
                            grown[lane] = tile[row * WIDTH + lane]
        weights += 2 * mlp * width * element
        meet(counter, threads)
        blocks = width // WIDTH
        for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
            for begin in range(0, n, TILE):
                count = min(TILE, n - begin)
                multiply(
                    weights + block * WIDTH * mlp * element, job[GROWN] + begin * mlp * element, mlp, mlp, count,
                    tile_address, half,
                )  # fmt: skip
                for row in range(count):
                    place = (begin + row) * width + block * WIDTH
                    for lane in range(WIDTH):
                        hidden[place + lane] += tile[row * WIDTH + lane]
        weights += width * mlp * element
        meet(counter, threads)
    last_norm = floats(job[VECTOR_WEIGHTS] + layers * vector_bytes, width)
    normalise(hidden, n - keep, keep, width, last_norm, eps, normed, half)
    blocks = rows // WIDTH
    for block in range(blocks * thread // threads, blocks * (thread + 1) // threads):
        for begin in range(0, keep, TILE):
            count = min(TILE, keep - begin)
            multiply(
                job[HEAD] + block * WIDTH * width * element, normed + begin * width * element, width, width, count,
                tile_address, half,
            )  # fmt: skip
            for row in range(count):
                target = floats(job[LOGITS] + 4 * ((begin + row) * rows + block * WIDTH), WIDTH)
                for lane in range(WIDTH):
                    target[lane] = tile[row * WIDTH + lane]
    meet(counter, threads)


@fast
def run(job, threads, half, signals):
    """Run a forward: wake the other threads, take part, return when it is done."""
    for other in range(1, threads):
        post(signals[other])
    work(job, 0, threads, half)


@fast
def serve(job, thread, threads, half, signal):
    """A worker's life: wait, work, until `job[STOP]`."""
    while True:
        wait(signal)
        if job[STOP]:
            return
        work(job, thread, threads, half)
