"""Decisions about contained exceptions."""
