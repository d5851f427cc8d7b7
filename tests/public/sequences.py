#!/usr/bin/env python3
"""Prints related DNA sequences as FASTA: sequences.py COUNT LENGTH SEED. All have the same length."""
import random
import sys

count, length, seed = map(int, sys.argv[1:])
random.seed(1)
ancestors = ["".join(random.choices("ACGT", k=length)) for _ in range(8)]
random.seed(seed)
for number in range(count):
    bases = list(random.choice(ancestors))
    for _ in range(length // 10):
        bases[random.randrange(length)] = random.choice("ACGT")
    print(f">s{number}\n{''.join(bases)}")
