"""What mpsctl can do, a file for each subject; table.py lists it all."""
