"""`mpsd check`: whether this machine and its configuration are fit for mpsd."""
