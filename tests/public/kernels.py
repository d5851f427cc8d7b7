#!/usr/bin/env python3
"""Parallel kernels of Debian's Python libraries: kernels.py NAME ROUNDS. The main thread fills all arrays."""
import sys

import numpy as np

name, rounds = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(1)


def stencil():
    import numba

    @numba.njit(parallel=True, cache=True)
    def sweep(old, new):
        for row in numba.prange(1, old.shape[0] - 1):
            for column in range(1, old.shape[1] - 1):
                new[row, column] = 0.2 * (
                    old[row, column] + old[row - 1, column] + old[row + 1, column] + old[row, column - 1] + old[row, column + 1]
                )

    old, new = random.random((1500, 1500)), np.zeros((1500, 1500))
    for _ in range(rounds):
        sweep(old, new)
        old, new = new, old
    return old.sum()


def sparse():
    import numba

    @numba.njit(parallel=True, cache=True)
    def multiply(values, columns, x, y):
        for row in numba.prange(len(y)):
            total = 0.0
            for at in range(10 * row, 10 * row + 10):
                total += values[at] * x[columns[at]]
            y[row] = total

    rows = 200_000
    values, columns = random.random(10 * rows), random.integers(0, rows, 10 * rows, dtype=np.int32)
    x, y = random.random(rows), np.zeros(rows)
    for _ in range(rounds):
        multiply(values, columns, x, y)
        x, y = y, x
    return x.sum()


def kmeans():
    from sklearn.cluster import KMeans

    points = random.random((200_000, 8))
    return KMeans(8, init=points[:8], n_init=1, max_iter=rounds, tol=0, algorithm="lloyd").fit(points).inertia_


def boosting():
    from sklearn.ensemble import HistGradientBoostingRegressor

    features = random.random((100_000, 20))
    model = HistGradientBoostingRegressor(max_iter=rounds, early_stopping=False)
    return model.fit(features, features.sum(axis=1)).predict(features[:1])[0]


def expression():
    import numexpr

    a, b, c = (random.random(1_000_000) for _ in range(3))
    out = np.zeros_like(a)
    for _ in range(rounds):
        numexpr.evaluate("2 * a + b * c", out=out)
    return out.sum()


def product():
    a, b, c = (random.random((1000, 1000)) for _ in range(3))
    for _ in range(rounds):
        np.matmul(a, b, out=c)
    return c.sum()


print(f"{name} {vars()[name]():.6g}")
