"""How the demo pair was made and measured: corpus, networks, training, files, model card. See docs/demo.md."""
