"""The commands of mpsctl, one file per subject; table.py lists them all."""
