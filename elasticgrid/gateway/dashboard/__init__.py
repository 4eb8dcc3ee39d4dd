"""The page at `/`: a thin view over the HTTP interface, without a second way to the data."""
