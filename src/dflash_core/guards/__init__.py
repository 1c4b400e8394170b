"""Guards end an answer, or its reasoning: loops and a thinking budget. No torch here."""
