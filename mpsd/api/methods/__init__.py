"""The handlers of the methods, by subject.  api/table.py has the privilege and the parameters of each."""
