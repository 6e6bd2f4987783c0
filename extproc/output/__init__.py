"""From the engine's tokens to the answer's text: detokenizing per choice, stop strings, log probabilities.

Knows the neutral events on both sides. Must not know dialects or wire formats. No I/O.
"""
