"""The node agent: one per node, it runs the workers of each round and records what becomes of them."""
