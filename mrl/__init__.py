"""Mutual RL: train heterogeneous language models that share experience."""
