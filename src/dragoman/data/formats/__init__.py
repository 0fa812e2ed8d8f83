"""Formats of text: each file is a reader."""
