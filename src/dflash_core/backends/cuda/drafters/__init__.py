"""One file for each drafter that proposes on the card."""
