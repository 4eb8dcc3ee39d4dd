"""Views of the event log in SQLite: what lists, details and costs are read from. They can be deleted at any time."""
