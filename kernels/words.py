"""Values of 16 bits that travel in words of 32.

Carried from turn to turn of a loop one by one, they would be moved about one by one, and the move
waits for the load just issued.
"""

import triton
import triton.language as tl


@triton.constexpr_function
def per_word(dtype, columns):
    """How many neighbours of `dtype` travel as one word: two of 16 bits, where rows are even."""
    return 2 if dtype.primitive_bitwidth == 16 and columns % 2 == 0 else 1


@triton.jit
def packed(pointer, COLUMNS: tl.constexpr):
    """`pointer` to rows of COLUMNS, to be read in words."""
    if per_word(pointer.dtype.element_ty, COLUMNS) == 2:
        pointer = pointer.to(tl.pointer_type(tl.int32))
    return pointer


@triton.jit
def unpacked(words, DTYPE: tl.constexpr):
    """[ROWS, COLUMNS] of DTYPE from `words` read through `packed`."""
    if DTYPE.primitive_bitwidth == 16 and words.dtype == tl.int32:
        even, odd = words.to(tl.int16), (words >> 16).to(tl.int16)
        words = tl.interleave(even, odd).to(DTYPE, bitcast=True)
    return words


@triton.jit
def widened(words, DTYPE: tl.constexpr):
    """As `unpacked`, in float32. Two bfloat16 are the halves of two float32."""
    if tl.bfloat16 == DTYPE and words.dtype == tl.int32:
        even = (words << 16).to(tl.float32, bitcast=True)
        odd = (words & -65536).to(tl.float32, bitcast=True)
        return tl.interleave(even, odd)
    else:
        return unpacked(words, DTYPE).to(tl.float32)
