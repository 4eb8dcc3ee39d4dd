"""The pure core: what decides, and the types it decides over.

Nothing here reads a clock, draws a random number, touches a file, a socket or the environment, or awaits.
Time, identifiers and prices arrive as arguments, so the same arguments always give the same answer.
"""
