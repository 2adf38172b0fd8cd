"""Greedy decoding in int8 as one compiled function: products, layers, search. No fairseq in here.

All of it is one file, since numba compiles a stored function anew only if that function's own file
has changed.

Weights are int8 with one scale a row, and inputs int8 with one scale a token. Sums are exact on all
processors, so that what is written depends neither on the batch nor on the processor's product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils as _cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from specdec_plugins.engines.compiling import compiled

Floats = NDArray[np.float32]
#: Freedoms of the compiler. Without those of NaN and infinity, by which tokens are banned.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}
#: Output tokens whose 4-bit logits are so close to the best (in nats) are compared in float32.
MARGIN = 2.0
#: Rows of weights that are multiplied at once.
ROWS = 4
#: Activations by the names of their functions.
ACTIVATIONS = ("relu", "gelu", "silu", "gelu_accurate")
#: The smallest of the largest number of a row or an input that is not taken for zero.
ZERO = 1e-12


@dataclass(frozen=True)
class Family:
    """Processors with the same instruction for products."""

    #: LLVM's name of the feature, switched on.
    feature: str
    #: Weights that an instruction takes.
    width: int
    #: Stored weights are unsigned: larger by this.
    offset: int


FAMILIES = (
    Family("+avx512vnni", 64, 128),
    Family("+avxvnni", 32, 128),
    Family("+avx2", 32, 0),
)


#: LLVM's names of what numba compiles for, the processor's.
_codegen = cpu_target.target_context.codegen()
FEATURES = _codegen.magic_tuple()[-1].split(",")
#: Without the types that numba has in part.
cgutils: Any = _cgutils
#: The family of the processor that numba compiles for.
FAMILY = next((item for item in FAMILIES if item.feature in FEATURES), None)
OFFSET = FAMILY.offset if FAMILY else 0


class Model(NamedTuple):
    """A decoder's weights, in arrays of the same types for all depths and sizes."""

    #: All products, one after another, each a matrix that is padded to multiples of :data:`ROWS`
    #: rows and of the family's width, and stored in the order of :func:`in_order`.
    weights: NDArray[np.uint8]
    #: A scale and a bias for each of these rows.
    scales: Floats
    biases: Floats
    #: ``(products, 4)`` where the weights begin and where the rows do, and their numbers: rows and
    #: columns. A layer has six: self-attention's input and output, the query and the output of
    #: cross-attention, and the two of the FFN.
    products: NDArray[np.int64]
    #: ``(norms, 2, channels)`` weights and biases: three a layer, the last one, the embedding's.
    norms: Floats
    #: ``(tokens, bytes)`` the output projection, two weights a byte; padded and stored as they are.
    screen: NDArray[np.uint8]
    screen_scales: Floats
    #: ``(tokens,)`` added to logits; minus infinity bans a token.
    token_biases: Floats
    #: ``(tokens, width)``
    output: Floats
    #: ``(tokens, channels)``
    embeddings: Floats
    #: ``(width, channels)`` what is applied before it, where its width is another; else empty.
    projection: Floats
    #: ``(length, channels)`` embeddings of positions; empty if there are none.
    positions: Floats
    pad: int
    eos: int
    heads: int
    #: Channels within the FFN.
    inner: int
    embed_scale: float
    epsilon: float
    #: An index of :data:`ACTIVATIONS`.
    activation: int
    norms_before: bool
    norms_last: bool
    norms_embedding: bool


class Scratch(NamedTuple):
    """Memory of a call."""

    state: Floats
    normed: Floats
    result: Floats
    attended: Floats
    codes: NDArray[np.int8]
    weights: Floats
    logits: Floats
    #: ``(length, width)`` what the output projection reads of each token.
    states: Floats


def in_order(matrix: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a padded matrix's bytes ``(rows, bytes)`` in the order in which products read them.

    Of :data:`ROWS` rows the first chunks of the family's width come first, then the second ones.
    """
    assert FAMILY is not None
    chunks = matrix.reshape(-1, ROWS, matrix.shape[1] // FAMILY.width, FAMILY.width)
    return np.ascontiguousarray(chunks.swapaxes(1, 2)).reshape(matrix.shape)


def _products_of(bits: int) -> Any:
    """Return the products of :data:`ROWS` rows of weights of so many bits, compiled in place."""

    @intrinsic
    def products(_typing: Any, weights: Any, _begin: Any, _size: Any, codes: Any) -> Any:
        """Return the sums of the rows that begin at byte ``_begin``, each of ``_size`` bytes."""
        result = types.UniTuple(types.int32, ROWS)  # type: ignore[no-untyped-call]
        signature = result(weights, types.int64, types.int64, codes)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows = context.make_array(signature.args[0])(context, builder, arguments[0]).data
            inputs = context.make_array(signature.args[3])(context, builder, arguments[3]).data
            rows = builder.gep(rows, [arguments[1]])
            sums = _sums(builder, bits, rows, arguments[2], inputs)
            return context.make_tuple(builder, signature.return_type, sums)

        return signature, generate

    return products


def _sums(builder: Any, bits: int, rows: Any, size: Any, inputs: Any) -> list[Any]:
    """Return instructions for the sums of rows of ``size`` bytes times ``inputs``.

    They lie as :func:`in_order` has them, so that memory is read from front to back, which
    processors foresee. A chunk of 4-bit weights has the low halves of its bytes first.
    """
    assert FAMILY is not None
    number = ir.IntType(64)
    constant = partial(ir.Constant, number)
    width = FAMILY.width
    parts = 8 // bits
    lanes = ir.VectorType(ir.IntType(8), width)
    wide = ir.VectorType(ir.IntType(32), width // 4)
    zero = ir.Constant(wide, [0] * wide.count)
    totals = [cgutils.alloca_once_value(builder, zero) for _ in range(ROWS)]

    def loaded(base: Any, offset: Any) -> Any:
        address = builder.bitcast(builder.gep(base, [offset]), lanes.as_pointer())
        return builder.load(address, align=1)

    with cgutils.for_range(builder, builder.udiv(size, constant(width)), intp=number) as loop:
        offset = builder.mul(loop.index, constant(width))
        first = builder.mul(offset, constant(parts))
        taken = [
            loaded(inputs, builder.add(first, constant(part * width))) for part in range(parts)
        ]
        for row, total in enumerate(totals):
            begin = builder.mul(offset, constant(ROWS))
            weights = loaded(rows, builder.add(begin, constant(row * width)))
            halves = [weights] if bits == 8 else _halves(builder, weights)
            builder.store(_added(builder, builder.load(total), halves, taken), total)
    adding = _function(builder, f"llvm.vector.reduce.add.v{wide.count}i32", wide.element, wide)
    return [builder.call(adding, [builder.load(total)]) for total in totals]


def _halves(builder: Any, weights: Any) -> list[Any]:
    """Return the low and the high 4 bits of each byte."""
    lanes = weights.type
    low = ir.Constant(lanes, [15] * lanes.count)
    pairs = ir.VectorType(ir.IntType(16), lanes.count // 2)
    four = ir.Constant(pairs, [4] * pairs.count)
    shifted = builder.lshr(builder.bitcast(weights, pairs), four)
    high = builder.bitcast(shifted, lanes)
    return [builder.and_(weights, low), builder.and_(high, low)]


def _added(builder: Any, total: Any, weights: list[Any], codes: list[Any]) -> Any:
    """Return ``total`` and the products of weights and inputs, of four neighbours each.

    One vector has 8-bit weights, a list of two has 4-bit ones, from 0 to 15.
    """
    assert FAMILY is not None
    wide = total.type
    lanes = codes[0].type
    if FAMILY.offset:
        name = f"llvm.x86.avx512.vpdpbusd.{8 * FAMILY.width}"
        add = _function(builder, name, wide, wide, wide, wide)
        for vectors in zip(weights, codes):
            total = builder.call(add, [total, *(builder.bitcast(x, wide) for x in vectors)])
        return total
    # The instruction takes unsigned times signed numbers. Sums of pairs fit into 16 bits: of two
    # times 127 * 127, or of four times 15 * 127.
    pairs = ir.VectorType(ir.IntType(16), lanes.count // 2)
    sign = _function(builder, "llvm.x86.avx2.psign.b", lanes, lanes, lanes)
    by_pairs = _function(builder, "llvm.x86.avx2.pmadd.ub.sw", pairs, lanes, lanes)
    by_fours = _function(builder, "llvm.x86.avx2.pmadd.wd", wide, pairs, pairs)
    if len(weights) == 1:
        sizes = builder.call(sign, [codes[0], codes[0]])
        signed = builder.call(sign, [weights[0], codes[0]])
        twos = builder.call(by_pairs, [sizes, signed])
    else:
        low, high = (builder.call(by_pairs, [*vectors]) for vectors in zip(weights, codes))
        twos = builder.add(low, high)
    fours = builder.call(by_fours, [twos, ir.Constant(pairs, [1] * pairs.count)])
    return builder.add(total, fours)


def _function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)


_products_8 = _products_of(8)
_products_4 = _products_of(4)
_fast = partial(compiled, fastmath=FAST, error_model="numpy")


# Loops in place of numpy's expressions: for each of two arrays, numba compiles the text of an error
# about their shapes, and its sums and maxima are functions of their own. That took three fifths of
# the time.
@_fast
def _quantised(x: Floats, codes: NDArray[np.int8], width: int) -> tuple[Any, Any]:
    """Fill ``codes`` with ``x`` in int8, up to ``width`` with zeros; return their scale and sum."""
    largest = np.float32(ZERO)
    for i in range(len(x)):
        size = abs(x[i])
        if size > largest or math.isnan(size):  # which stays
            largest = size
    scale = largest / np.float32(127)
    inverse = np.float32(1) / scale
    total = np.int32(0)
    for i in range(len(x)):
        codes[i] = np.int8(math.floor(x[i] * inverse + np.float32(0.5)))
        total += np.int32(codes[i])
    for i in range(len(x), width):
        codes[i] = 0
    return scale, total


@_fast
def _multiply(model: Model, index: int, x: Floats, scratch: Scratch, y: Floats) -> None:
    """Fill ``y`` with the product of a matrix of the model and ``x``."""
    begin = model.products[index, 0]
    first = model.products[index, 1]
    rows = model.products[index, 2]
    columns = model.products[index, 3]
    scale, total = _quantised(x, scratch.codes, columns)
    correction = np.int32(OFFSET * total)
    for row in range(0, rows, ROWS):
        sums = _products_8(model.weights, begin + row * columns, columns, scratch.codes)
        for i in range(ROWS):
            at = first + row + i
            value = np.float32(sums[i] - correction) * scale * model.scales[at]
            y[row + i] = value + model.biases[at]


@_fast
def _copy(x: Floats, y: Floats) -> None:
    for i in range(len(x)):
        y[i] = x[i]


@_fast
def _dot(x: Floats, y: Floats) -> Any:
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@_fast
def _normalise(model: Model, index: int, x: Floats, y: Floats) -> None:
    """Fill ``y`` with a layer norm of ``x``, which may be the same."""
    total = np.float32(0)
    for i in range(len(x)):
        total += x[i]
    mean = np.float32(total / len(x))
    variance = np.float32(0)
    for i in range(len(x)):
        variance += (x[i] - mean) * (x[i] - mean)
    factor = np.float32(1 / math.sqrt(variance / len(x) + model.epsilon))
    for i in range(len(x)):
        y[i] = (x[i] - mean) * factor * model.norms[index, 0, i] + model.norms[index, 1, i]


@_fast
def _attend(
    query: Floats, keys: Floats, values: Floats, count: int, scratch: Scratch, y: Floats
) -> None:
    """Fill ``y`` ``(channels,)`` with attention to ``count`` positions.

    ``keys``, ``values``: ``(heads, n, dim)`` of them, or of more.
    """
    heads, _, dim = keys.shape
    scale = np.float32(1 / math.sqrt(dim))
    weights = scratch.weights
    for i in range(len(y)):
        y[i] = 0
    for head in range(heads):
        begin = head * dim
        largest = np.float32(-np.inf)
        for position in range(count):
            score = np.float32(0)
            for i in range(dim):
                score += query[begin + i] * keys[head, position, i]
            weights[position] = score * scale
            largest = max(largest, weights[position])
        total = np.float32(0)
        for position in range(count):
            weights[position] = math.exp(weights[position] - largest)
            total += weights[position]
        for position in range(count):
            weight = weights[position] / total
            for i in range(dim):
                y[begin + i] += weight * values[head, position, i]


@_fast
def _activate(x: Floats, activation: int) -> None:
    """Apply one of :data:`ACTIVATIONS` in place."""
    for i in range(len(x)):
        if activation == 0:
            if x[i] < 0:
                x[i] = 0
        elif activation == 1:
            x[i] *= np.float32(0.5 + 0.5 * math.erf(x[i] * math.sqrt(0.5)))
        elif activation == 3:  # Hendrycks and Gimpel (2016)
            inner = math.sqrt(2 / math.pi) * (x[i] + 0.044715 * x[i] * x[i] * x[i])
            x[i] *= np.float32(0.5 + 0.5 * math.tanh(inner))
        else:
            x[i] /= np.float32(1 + math.exp(-x[i]))


@_fast
def _before(model: Model, norm: int, x: Floats, normed: Floats) -> None:
    """Fill ``normed`` with the input of a layer's part."""
    if model.norms_before:
        _normalise(model, norm, x, normed)
    else:
        _copy(x, normed)


@_fast
def _after(model: Model, norm: int, x: Floats, y: Floats) -> None:
    """Add a part's result ``y`` to ``x``."""
    for i in range(len(x)):
        x[i] += y[i]
    if not model.norms_before:
        _normalise(model, norm, x, x)


@_fast
def _run_layer(
    model: Model, layer: int, position: int, memory: Floats, cache: Floats, scratch: Scratch
) -> None:
    """Run a layer over ``scratch.state``, in place.

    Args:
        memory: ``(layers, 2, heads, source, dim)`` keys and values of the source.
        cache: ``(layers, 2, heads, n, dim)`` those of the tokens up to this ``position``.
    """
    x = scratch.state
    normed = scratch.normed
    result = scratch.result
    attended = scratch.attended
    channels = len(x)
    keys = cache[layer, 0]
    values = cache[layer, 1]
    _before(model, 3 * layer, x, normed)
    _multiply(model, 6 * layer, normed, scratch, result)
    dim = keys.shape[2]
    for head in range(model.heads):
        at = channels + head * dim
        _copy(result[at : at + dim], keys[head, position])
        _copy(result[at + channels : at + channels + dim], values[head, position])
    _attend(result, keys, values, position + 1, scratch, attended)
    _multiply(model, 6 * layer + 1, attended, scratch, result)
    _after(model, 3 * layer, x, result)

    _before(model, 3 * layer + 1, x, normed)
    _multiply(model, 6 * layer + 2, normed, scratch, result)
    keys = memory[layer, 0]
    values = memory[layer, 1]
    _attend(result, keys, values, keys.shape[1], scratch, attended)
    _multiply(model, 6 * layer + 3, attended, scratch, result)
    _after(model, 3 * layer + 1, x, result)

    _before(model, 3 * layer + 2, x, normed)
    _multiply(model, 6 * layer + 4, normed, scratch, result)
    hidden = result[: model.inner]
    _activate(hidden, model.activation)
    _multiply(model, 6 * layer + 5, hidden, scratch, result)
    _after(model, 3 * layer + 2, x, result)


@_fast
def _embed(model: Model, token: int, position: int, x: Floats) -> None:
    """Fill ``x`` with a token's embedding."""
    for i in range(len(x)):
        x[i] = np.float32(model.embed_scale) * model.embeddings[token, i]
    if len(model.positions):
        row = min(position, len(model.positions) - 1)
        for i in range(len(x)):
            x[i] += model.positions[row, i]
    if model.norms_embedding:
        _normalise(model, len(model.norms) - 1, x, x)


@_fast
def _choose(model: Model, state: Floats, banned: int, scratch: Scratch) -> tuple[int, float]:
    """Return the best token and its probability among those that are near.

    All tokens are compared in 4 bits, and those within :data:`MARGIN` of the best in float32.
    ``banned``: a token, too.
    """
    logits = scratch.logits
    tokens, size = model.screen.shape
    flat = model.screen.reshape(-1)
    scale, total = _quantised(state, scratch.codes, 2 * size)
    # Stored weights are larger by 8.
    correction = np.int32(8 * total)
    for token in range(0, tokens, ROWS):
        sums = _products_4(flat, token * size, size, scratch.codes)
        for i in range(ROWS):
            at = token + i
            logit = np.float32(sums[i] - correction) * scale * model.screen_scales[at]
            logits[at] = logit + model.token_biases[at]
    logits[banned] = -np.inf
    highest = np.float32(-np.inf)
    for token in range(tokens):
        if logits[token] > highest or math.isnan(logits[token]):  # which stays
            highest = logits[token]
    near = highest - np.float32(MARGIN)
    best = model.eos
    largest = np.float32(-np.inf)
    total = np.float32(0)  # of exp(logit - largest)
    for token in range(tokens):
        if logits[token] >= near:
            exact = model.token_biases[token] + _dot(model.output[token], state)
            if exact > largest:
                total = total * np.exp(largest - exact) + np.float32(1)
                largest = exact
                best = token
            else:
                total += np.exp(exact - largest)
    return best, 1 / total if total else 0.0  # no token is near a NaN


@_fast
def write(
    model: Model,
    memory: Floats,
    cache: Floats,
    tokens: NDArray[np.int64],
    probabilities: Floats,
    begin: int,
    known: int,
    may_end: int,
    scratch: Scratch,
) -> int:
    """Write on in ``tokens`` until EOS or the last of them; return how many there are.

    Args:
        memory: ``(layers, 2, heads, source, dim)`` keys and values of the source.
        cache: ``(layers, 2, heads, n, dim)`` those of the target.
        probabilities: is filled for each token that is written.
        begin: tokens that are cached.
        known: tokens that there are.
        may_end: the index of the first token that may be EOS.
    """
    x = scratch.state
    for position in range(begin, len(tokens) - 1):
        _embed(model, tokens[position], position, x)
        for layer in range(len(memory)):
            _run_layer(model, layer, position, memory, cache, scratch)
        if model.norms_last:
            _normalise(model, len(model.norms) - 2, x, scratch.normed)
        else:
            _copy(x, scratch.normed)
        state = scratch.states[position]
        if len(model.projection):
            for i in range(len(state)):
                state[i] = _dot(model.projection[i], scratch.normed)
        else:
            _copy(scratch.normed, state)
        after = position + 1
        if after < known:
            continue
        banned = model.eos if after < may_end else model.pad
        tokens[after], probabilities[after] = _choose(model, state, banned, scratch)
        if tokens[after] == model.eos:
            return after + 1
    return len(tokens)


@_fast
def multiplied(weights: NDArray[np.uint8], codes: NDArray[np.int8]) -> tuple[Any, Any]:
    """Return the sums of :data:`ROWS` rows of weights in 8 and in 4 bits."""
    size = len(weights) // ROWS
    return _products_8(weights, 0, size, codes), _products_4(weights, 0, size, codes)
