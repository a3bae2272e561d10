"""Shipped configurations."""
