"""Checking, backing up and restoring a folder."""
