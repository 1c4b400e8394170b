"""Tool calls in what a model writes: found, typed and streamed. A file per form, a table in `forms`. No torch here."""
