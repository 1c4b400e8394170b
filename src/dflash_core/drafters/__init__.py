"""Drafters: what proposes the tokens that the target then verifies. One file per kind, and a registry of kinds."""
