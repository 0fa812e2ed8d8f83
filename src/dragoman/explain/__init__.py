"""Looking inside a model, attached from outside: what its lines compute, where its heads look, what a search tried, what it costs."""
