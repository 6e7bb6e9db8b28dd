"""Attacks on the guarantee: random sequences of operations, a search for the worst gradients, a long run.

    python -m tests.fuzz --sequences 10000 --seed 0               random sequences of operations
    python -m tests.fuzz.adversary --trials 100000 --seed 0       the largest distance that gradients can cause
    python -m tests.fuzz.soak --steps 1000000                     many steps with restarts

Each prints what it counted, writes it with ``--output FILE.json``, and exits with 1 if a promise was broken.
"""
