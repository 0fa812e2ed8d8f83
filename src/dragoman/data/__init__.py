"""Section 5.1: text, ids and batches. It does not know the model."""
