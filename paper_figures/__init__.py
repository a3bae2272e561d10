"""Figures of the paper: ``python -m paper_figures [NAME...] [-o DIR]``.

A figure is a module with three parts: ``SWEEP``, over which settings; `compute`, a tidy frame;
`plot`, the picture; and `caption`, the claim with the frame's own numbers.
"""
