"""Constraints on an answer: schemas and grammars, followed exactly under speculation. No torch here."""
