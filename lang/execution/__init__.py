"""How nodes become requests, and events values: one executor for every backend."""
