"""The HTTP server: request bodies to plans, plans to tickets of the engine, pieces to answers."""
