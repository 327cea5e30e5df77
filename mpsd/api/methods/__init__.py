"""The handlers of the methods, by subject.  Who may call which, and with what, is in api/table.py."""
