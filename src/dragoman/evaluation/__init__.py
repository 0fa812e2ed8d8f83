"""Section 6: scores of translations, and a test set through a translator."""
