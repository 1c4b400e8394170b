"""Decides what the next step runs and learns from its outcome. No torch here."""
