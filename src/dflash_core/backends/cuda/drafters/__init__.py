"""The drafters that propose on the card."""
