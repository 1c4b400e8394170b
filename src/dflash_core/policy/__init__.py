"""What the next step runs: asked before each step, told what came of it. No torch here."""
