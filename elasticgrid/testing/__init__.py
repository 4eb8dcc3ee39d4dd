"""Public fakes, a virtual clock, and the contract suites that every adapter passes."""
