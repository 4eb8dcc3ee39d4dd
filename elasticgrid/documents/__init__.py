"""Documents generated from code, for readers in other languages: the JSON Schemas in `schemas/`."""
