"""Which sample stands where: a pseudo-random order that no rank has to store, and who reads which row.

The order is a permutation of the samples computed one element at a time (a Feistel network, whose
rounds can be any function and which is still a bijection), a new one each epoch. It depends on the seed
and on nothing of the layout, so every layout trains on the same samples in the same steps.
"""

from __future__ import annotations

from seqplan.runtime.random_field import seed_of

_ROUNDS = 6
_MASK64 = (1 << 64) - 1


def _round(word: int, key: int) -> int:
    """Mixes one half: the finaliser of splitmix64 (Steele et al., OOPSLA 2014)."""
    x = (word + key * 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


class Permutation:
    """A fixed pseudo-random bijection of 0..size-1, in constant memory."""

    def __init__(self, size: int, seed: int) -> None:
        assert size >= 1
        self.size = size
        # The network permutes 2 ** (2 * half_bits) >= size numbers; at most four times too many.
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._keys = [seed_of("sample order", seed, number) for number in range(_ROUNDS)]

    def __getitem__(self, index: int) -> int:
        assert 0 <= index < self.size
        mask = (1 << self._half_bits) - 1
        while True:
            left, right = index >> self._half_bits, index & mask
            for key in self._keys:
                left, right = right, left ^ (_round(right, key) & mask)
            index = left << self._half_bits | right
            if index < self.size:  # else walk the cycle on until it comes back into the range
                return index


def global_row(micro_batch: int, dp_rank: int, row: int, *, dp: int, micro_batch_size: int) -> int:
    """Row of the step's global batch that is `row` of a micro-batch of one dp rank. The only such rule."""
    return (micro_batch * dp + dp_rank) * micro_batch_size + row


class SampleOrder:
    """Sample of each (step, global row): one permutation of all samples after the other."""

    def __init__(self, num_samples: int, global_batch_size: int, seed: int) -> None:
        self.num_samples = num_samples
        self.global_batch_size = global_batch_size
        self.seed = seed
        self._epoch = 0
        self._permutation = Permutation(num_samples, seed_of(seed, 0))

    def draw(self, step: int, row: int) -> int:
        """How many samples were drawn before this one in the whole run; steps count from 0."""
        return step * self.global_batch_size + row

    def sample(self, step: int, row: int) -> int:
        epoch, index = divmod(self.draw(step, row), self.num_samples)
        if epoch != self._epoch:
            self._epoch = epoch
            self._permutation = Permutation(self.num_samples, seed_of(self.seed, epoch))
        return self._permutation[index]
