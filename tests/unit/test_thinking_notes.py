"""What a load says about thinking where the model leaves no choice."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from dflash_tui.cli import command_line as cli
from support.gguf_copy import stored, write_copy
from support.golden import golden

TINY = golden("targets/q3-F16.gguf")
NEVER = "this model does not support thinking: thinking on changes nothing"
ALWAYS = "this model always thinks before it answers: thinking off changes nothing"


@pytest.mark.parametrize(
    ("prompt", "note", "with_it"), [("", NEVER, "on"), ("<think>\n", ALWAYS, "off")], ids=["never", "always"]
)
def test_only_the_choice_that_changes_nothing_is_noted(
    prompt: str, note: str, with_it: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reader = gguf.GGUFReader(TINY)
    template = "{{ messages[0].content }}" + prompt
    file = write_copy(tmp_path / "fixed.gguf", reader, stored(reader), {"tokenizer.chat_template": template})
    words = ["ask", "hello", "--target", str(file), "--device", "cpu", "--set", "max_tokens=1"]
    for thinking in ("on", "off"):
        assert cli.main([*words, "--set", f"thinking={thinking}"]) == 0
        assert (f"note: {note}" in capsys.readouterr().err) == (thinking == with_it)
