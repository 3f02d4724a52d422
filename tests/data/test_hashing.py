from __future__ import annotations

import numpy as np

from sparsesnn.datasets import hashing

MASK = (1 << 64) - 1


def splitmix64(state: int):
    """The published generator, in Python's integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def test_bits_are_splitmix64():
    for key in (0, 1234567, MASK):
        generator = splitmix64(key)
        want = [next(generator) for _ in range(5)]
        assert hashing.bits(np.array([key], np.uint64), np.arange(5)).tolist() == want
    # the published first output for the seed 1234567
    assert hashing.bits(np.array([1234567], np.uint64), 0).tolist() == [6457827717110365317]


def test_keys_differ_for_every_word_and_accept_any_integer():
    all_keys = [
        int(hashing.keys(seed, epoch, sample)[0])
        for seed in (0, 1, -1, 2**64 - 2, 10**30)
        for epoch in (0, 1, 2)
        for sample in (0, 1, 2)
    ]
    assert len(set(all_keys)) == len(all_keys)
    np.testing.assert_array_equal(hashing.keys(3, 4, np.array([7, 9])), [hashing.keys(3, 4, s)[0] for s in (7, 9)])


def test_uniform_and_normal_have_their_moments():
    key = hashing.keys(5, 6)
    u, z = hashing.uniform(key, np.arange(200_000)), hashing.normal(key, np.arange(200_000))
    assert 0 <= u.min() < u.max() < 1
    # five standard errors of the mean and of the variance
    assert abs(u.mean() - 0.5) < 5 * (1 / 12 / 200_000) ** 0.5
    assert abs(z.mean()) < 5 * (1 / 200_000) ** 0.5
    assert abs(z.var() - 0.9994) < 5 * (2 / 200_000) ** 0.5
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 * (1 / 200_000) ** 0.5


def test_permutation_is_one_and_is_fixed():
    for n in (0, 1, 2, 33):
        assert sorted(hashing.permutation(n, hashing.keys(0, n)).tolist()) == list(range(n))
    # runs are resumed and compared by this order: it must never change
    assert hashing.permutation(8, hashing.keys(1, 2)).tolist() == [2, 7, 3, 1, 5, 6, 0, 4]
