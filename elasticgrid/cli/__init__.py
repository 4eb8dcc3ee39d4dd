"""The command line: one module per noun, a client of the gateway with no second way in."""
