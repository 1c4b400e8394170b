"""Unknown templates render in a process that can be killed: whatever they do, the program goes on."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from text_data import QWEN_TEMPLATE, qwen, tiny

from dflash_core.demo import demo_target_path
from dflash_core.errors import TemplateError
from dflash_core.formats.gguf import open_gguf
from dflash_core.messages import Message
from dflash_core.prompting import build_prompt
from dflash_core.text import render_process
from dflash_core.text.prompt import Prompting
from dflash_core.text.render_process import RenderProcess
from dflash_core.text.template import CHATML, ChatTemplate
from dflash_tui.application.background import DecoderUse, Running
from dflash_tui.application.session import OnPrefill, TurnLike

SOURCE_FOLDER = str(Path(render_process.__file__).parents[2])
HI = [{"role": "user", "content": "Hi"}]
HANGS_S = 600.0  # only a hang takes so long
HANG = "(messages[0].content * 1000000)|wordwrap(1)"  # not a constant, which Jinja would evaluate when it compiles
# Inside one call of the library, some of them with the interpreter held, some before the first line is rendered.
RUNAWAYS = [
    "{{ ('a'*4000000)|wordwrap(1) }}",
    "{{ ([[1]]*300000)|sum(start=[])|length }}",
    "{{ ([1]*100000)|reject('in',[0]*10000000)|list|length }}",
    "{{ ('{'+':'*4000000).format(1) }}",
    "{% if false %}{{ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'|list|batch(1)|list|length }}{% endif %}{{ " + HANG + " }}",
    "{% set a = ['a' * 16000000] * 1000 %}{{ a|string|length }}",
    "{% set n = namespace(x=[0]) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x|string }}",
    "{{ ('a' * 1000000)|replace('a', 'b' * 16000000)|length }}",
    "{% set a = [[1] * 1000] * 1000 %}{{ ([a|string] * 2000)|join|length }}",
]


def render(template: ChatTemplate, text: str = "Hi") -> str:
    return template.render([{"role": "user", "content": text}], thinking=False)


def worker_of(template: ChatTemplate) -> subprocess.Popen[bytes]:
    assert isinstance(template._renderer, RenderProcess)
    assert template._renderer._worker is not None
    return template._renderer._worker._process


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> ChatTemplate:
    """One that never ends where it is asked to "hang"."""
    monkeypatch.setattr(render_process, "SECONDS", HANGS_S)
    return ChatTemplate("{% if messages[0].content == 'hang' %}{{ " + HANG + " }}{% endif %}ok")


@pytest.mark.parametrize("source", RUNAWAYS)
def test_the_app_stays_awake_and_says_it_in_a_line(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template renders on the thread that the app gives to a turn; this thread stands for the app's."""
    monkeypatch.setattr(render_process, "SECONDS", 0.25)

    def open_turn(_: OnPrefill) -> TurnLike:
        render(ChatTemplate(source))
        raise AssertionError("it rendered")

    running = Running(DecoderUse(), open_turn)
    running.start()
    running.stop()  # what Esc does: the turn is not there yet, so it ends with the render
    longest, last = 0.0, time.monotonic()
    while not running.over:
        time.sleep(0.01)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert longest < 10, "seconds without the interpreter, on a busy machine; where it is held it is forty and more"
    assert isinstance(running.error, TemplateError)
    assert "\n" not in str(running.error)
    assert str(running.error).startswith("the chat template ")


def test_after_a_kill_a_fresh_worker_renders(hanging: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    first = worker_of(hanging)
    with monkeypatch.context() as late:
        late.setattr(render_process, "SECONDS", 0.5)
        with pytest.raises(TemplateError, match=r"^the chat template failed: still running after 0.5 s$"):
            render(hanging, "hang")
    assert first.returncode == -signal.SIGKILL, "ended, and no zombie"
    assert render(hanging) == "ok"
    second = worker_of(hanging)
    assert second.pid != first.pid
    assert render(hanging) == "ok"
    assert worker_of(hanging) is second, "kept for the next render"


def test_a_refusal_keeps_the_worker() -> None:
    template = ChatTemplate("{% if messages[0].content == 'no' %}\n{{ raise_exception('not so') }}{% endif %}ok")
    first = worker_of(template)
    with pytest.raises(TemplateError, match=r"^the chat template failed, line 2: not so$"):
        render(template, "no")
    assert render(template) == "ok"
    assert worker_of(template) is first


def test_a_worker_that_somebody_ended_is_replaced() -> None:
    template = ChatTemplate("ok")
    worker = worker_of(template)
    worker.kill()
    worker.wait()
    assert render(template) == "ok"
    assert worker_of(template) is not worker


def when_asked(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Call `then` as soon as a worker has been asked and its answer is awaited."""
    receive = render_process._Worker._receive

    def received(worker: render_process._Worker, deadline: float) -> dict[str, str]:
        then()
        return receive(worker, deadline)

    monkeypatch.setattr(render_process._Worker, "_receive", received)


def test_a_worker_that_ends_in_mid_render_is_told(hanging: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(hanging)
    with monkeypatch.context() as patched:
        when_asked(patched, lambda: os.kill(worker.pid, signal.SIGSEGV))
        with pytest.raises(TemplateError, match=r"failed: the process that renders it ended by signal 11$"):
            render(hanging, "hang")
    assert render(hanging) == "ok"


def test_ctrl_c_ends_a_render_at_once(hanging: ChatTemplate, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = worker_of(hanging)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with monkeypatch.context() as patched:
            when_asked(patched, lambda: signal.setitimer(signal.ITIMER_REAL, 0.2))
            with pytest.raises(KeyboardInterrupt):
                render(hanging, "hang")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert worker.returncode == -signal.SIGKILL
    assert render(hanging) == "ok"


def test_the_worker_goes_with_its_template() -> None:
    template = ChatTemplate("ok")
    worker = worker_of(template)
    del template
    gc.collect()
    assert worker.returncode == -signal.SIGKILL
    with pytest.raises(TemplateError, match="does not compile, line 1: "):
        ChatTemplate("{% if %}")


def _gone(pid: int) -> bool:
    """Whether it has ended. In a container it may stay a zombie, as nothing reaps orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("end", ["kill", "return"])
def test_no_worker_outlives_the_program(end: str) -> None:
    code = (
        "import sys, time\n"
        "from dflash_core.text.template import ChatTemplate\n"
        "template = ChatTemplate('ok')\n"
        "print(template._renderer._worker._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    environment = os.environ | {"PYTHONPATH": SOURCE_FOLDER}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert not _gone(pid)
        if end == "kill":
            program.kill()
    until = time.monotonic() + HANGS_S
    while not _gone(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert _gone(pid)


def test_a_worker_brings_neither_torch_nor_a_screen() -> None:
    code = "import sys, dflash_core.text.render_process; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": SOURCE_FOLDER}
    shown = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=environment)
    modules = {name.split(".")[0] for name in shown.stdout.decode().split()}
    assert "jinja2" in modules
    assert not modules & {"torch", "numpy", "textual", "rich", "dflash_tui", "tokenizers"}


def test_known_templates_need_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    demo = str(open_gguf(demo_target_path()).metadata["tokenizer.chat_template"])
    expected = [render(ChatTemplate(source + "{# changed #}")) for source in (QWEN_TEMPLATE, demo, CHATML)]

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert [render(ChatTemplate(source)) for source in (QWEN_TEMPLATE, demo, CHATML)] == expected
    assert render(ChatTemplate(None)) == expected[2]
    with pytest.raises(TemplateError, match="needs a process to render in: Resource temporarily unavailable"):
        ChatTemplate(QWEN_TEMPLATE + " ")


def test_what_passes_between_the_processes_arrives() -> None:
    """Lone surrogates, characters of every plane, more than a pipe holds."""
    template = ChatTemplate("{{ messages[0].content }}{{ name }}", {"name": "\udc80"})
    for text in ("\udcff é \U000f0000 \0\x1b", "long " * 400_000, ""):
        assert render(template, text) == text + "\udc80"


def test_a_slow_template_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template, asked = qwen(), 0
    slow = ChatTemplate(QWEN_TEMPLATE)

    class Slow:
        def render(self, *args: Any, **kwargs: Any) -> str:
            nonlocal asked
            asked += 1
            clock[0] += 2.0
            return template.render(*args, **kwargs)

    clock = [0.0]
    monkeypatch.setattr(slow, "_renderer", Slow())
    monkeypatch.setattr("dflash_core.prompting.time.monotonic", lambda: clock[0])
    prompt = build_prompt(Prompting(tiny(), slow, False), [Message("user", "Hi")])
    assert asked == 1
    assert prompt.stable == 0
    assert prompt.text == template.render(HI, thinking=False)
