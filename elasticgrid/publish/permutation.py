"""A permutation of 0 .. length - 1 that any place of can be asked for at once, in no memory, and is the same for ever.

The algorithm, "elasticgrid-1": with b = max(2, bits of length - 1), a number of b bits is split into a left part of
b // 2 bits and a right part of the rest. Eight times, in turn, the left part is XORed with a mix of the right one and
the right part with a mix of the left one, each time with a key of its own; each such step can be undone, so together
they permute all numbers of b bits. A result that is not below `length` is put in again until one is (cycle walking;
fewer than two rounds on average). The keys are the eight little-endian 64-bit words of the SHA-512 of
`elasticgrid-1:<seed>:<epoch>`. The mix of a part is the high half of `(part + key)` after the finalizer of MurmurHash3,
modulo 2^64. Integers only: every version of Python, and every machine, gives the same.
"""

from __future__ import annotations

import hashlib
import struct
from operator import index

from elasticgrid.core.errors import InvalidInput

MAX_LENGTH = 2**48
_WORD = 0xFFFF_FFFF_FFFF_FFFF


def whole(name: str, value: int) -> int:
    """`value` as Python's own integer, whatever kind of whole number it is: numpy's have other methods.

    Raises:
        InvalidInput: it is no whole number; a float is none, even without a fraction.
    """
    try:
        return index(value)
    except TypeError:
        kind = type(value).__name__
        raise InvalidInput(f"a whole number is wanted, not a {kind}", where=name, hint=f"int({name})") from None


class Permutation:
    """The order of `length` samples in one epoch.

    Args:
        length: how many, from 1 to 2^48.
        seed: any whole number; another seed is another order.
        epoch: likewise.

    Raises:
        InvalidInput: the length is out of range, or one of them is no whole number.
    """

    __slots__ = ("_keys", "_left_bits", "_left_mask", "_length", "_right_bits", "_right_mask")

    def __init__(self, length: int, *, seed: int, epoch: int) -> None:
        length, seed, epoch = whole("length", length), whole("seed", seed), whole("epoch", epoch)
        if not 1 <= length <= MAX_LENGTH:
            raise InvalidInput("a data set has from 1 to 2^48 samples", where=f"length {length}")
        bits = max(2, (length - 1).bit_length())
        self._length = length
        self._left_bits = bits // 2
        self._right_bits = bits - self._left_bits
        self._left_mask = (1 << self._left_bits) - 1
        self._right_mask = (1 << self._right_bits) - 1
        digest = hashlib.sha512(f"elasticgrid-1:{seed}:{epoch}".encode()).digest()
        self._keys = tuple(struct.iter_unpack("<2Q", digest))

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> int:
        """The sample at `place`, from 0.

        Raises:
            IndexError: there is no such place.
        """
        if not 0 <= place < self._length:
            raise IndexError(f"place {place} of {self._length}")
        left_mask, right_mask, right_bits = self._left_mask, self._right_mask, self._right_bits
        number = place
        while True:
            left, right = number >> right_bits, number & right_mask
            for left_key, right_key in self._keys:
                # The finalizer of MurmurHash3 twice, spelt out: this runs for every sample of the training.
                mix = right + left_key & _WORD
                mix = (mix ^ mix >> 33) * 0xFF51_AFD7_ED55_8CCD & _WORD
                mix = (mix ^ mix >> 33) * 0xC4CE_B9FE_1A85_EC53 & _WORD
                left ^= mix >> 32 & left_mask
                mix = left + right_key & _WORD
                mix = (mix ^ mix >> 33) * 0xFF51_AFD7_ED55_8CCD & _WORD
                mix = (mix ^ mix >> 33) * 0xC4CE_B9FE_1A85_EC53 & _WORD
                right ^= mix >> 32 & right_mask
            number = left << right_bits | right
            if number < self._length:
                return number
