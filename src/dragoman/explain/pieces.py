"""Pieces of a vocabulary as people see them."""


def shown_piece(piece: str) -> str:
    """A piece in a sentence, a table or a picture: without the space before it; white space alone as ␣."""
    return piece.strip() or "␣" * max(len(piece), 1)
