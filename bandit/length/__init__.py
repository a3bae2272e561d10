"""The length world: a response is L independent choices, and every moment is still exact.

A policy is one softmax over V tokens at each of L positions; a response succeeds if every token
is right. Responses are V^L strings, but no string is enumerated: what a rule is given are counts
of successes, and the weighted scores of a class of responses need only the distribution of one
token at a time, since a power of the ratio turns a product of distributions into another product.
Source: docs/theory.md, section 7.
"""

from bandit.length.moments import LengthMoments, moments
from bandit.length.plane import plane_by_length
from bandit.length.weights import TokenMoments, token_moments
from bandit.length.world import LengthWorld, long_answer

__all__ = [
    "LengthMoments",
    "LengthWorld",
    "TokenMoments",
    "long_answer",
    "moments",
    "plane_by_length",
    "token_moments",
]
