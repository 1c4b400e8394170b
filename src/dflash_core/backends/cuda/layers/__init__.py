"""One file per kind of layer: its weights, its memory, and its launches for a pass and for a chunk of a prompt."""
