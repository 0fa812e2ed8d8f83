"""The paper's equations, tables and golden values."""
