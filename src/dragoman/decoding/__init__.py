"""Section 6.1: from a model to translations, by beam search with a length penalty, and the scores of given ones."""
