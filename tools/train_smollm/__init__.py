"""The recipe of the drafter for SmolLM2."""
