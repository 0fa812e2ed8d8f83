"""Equality with other people's Transformers."""
