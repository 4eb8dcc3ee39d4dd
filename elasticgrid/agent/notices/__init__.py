"""Notices that a node will be taken away: from AWS, Google Cloud and Azure, from a file, and by a signal."""
