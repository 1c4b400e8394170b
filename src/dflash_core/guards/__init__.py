"""What ends an answer, or its reasoning, besides the model: loops and a budget of thinking. No torch here."""
