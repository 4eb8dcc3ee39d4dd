"""The decider service: follows facts and samples, and appends what the core decides."""
