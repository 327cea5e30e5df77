"""Every option, its check and its help; where the configuration comes from, and where files are."""
