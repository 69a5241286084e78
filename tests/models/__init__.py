"""Exhaustive models of the shared-memory algorithms, litmus tests of their memory orders, kernel facts.

A model is explored breadth-first over every interleaving of its processes, each killed at any step. It must
be kept true: who changes an algorithm changes its model first. Every model has canaries, planted defects
that it must find.
"""
