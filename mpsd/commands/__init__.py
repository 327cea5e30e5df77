"""The vendor's command language: its sessions, and its implementation over all fault domains."""
