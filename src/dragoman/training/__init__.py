"""Sections 5.1 to 5.4: batches, optimiser, schedule, regularisation, and the loop that uses them."""
