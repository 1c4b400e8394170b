"""One file for each kind of layer: its weights, its memory, its launches for a pass and for a chunk of a prompt."""
