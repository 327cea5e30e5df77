"""The handlers of the methods, by subject.  api/method_table.py has the privilege and the parameters of each."""
