"""Builds mpsd_client._native with the package.  Everything else about the package is in pyproject.toml."""

from setuptools import setup

setup(cffi_modules=["native/build.py:ffi"])
