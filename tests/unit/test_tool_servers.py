"""Real tool servers over stdio and HTTP, and programs that only pretend to be one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dflash_core.errors import DFlashError
from dflash_tui.application.conversations.tool_messages import ToolCall, ToolResult
from dflash_tui.application.settings.tool_servers import ToolServer
from dflash_tui.application.tools import offered
from dflash_tui.application.tools.rounds import Planned
from dflash_tui.application.tools.servers import Connection, ToolServers
from dflash_tui.application.tools.stdio import MAX_LINE
from support import light_tool_server
from support.tool_server import COMMAND

Start = Callable[..., ToolServers]
LIMIT_S = 120.0  # as long as only a hang takes
LIGHT = light_tool_server.COMMAND
THINGS = ToolServer("things", LIGHT[0], tuple(LIGHT[1:]))
# What a program that answers by hand begins with: `answer(result)` replies to the request that was read last.
BY_HAND = """
import json, os, sys, time
asked = None
def read():
    global asked
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    asked = json.loads(line)
    return asked.get("method")
def send(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
def answer(result):
    send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}))
def refuse():
    send(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no"}}))
def hello():
    info = {"name": "a", "version": "1"}
    answer({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info})
OBJECT = {"type": "object"}
def serve(tools, call):
    while True:
        method = read()
        if method == "initialize":
            hello()
        elif method == "tools/list":
            answer({"tools": tools})
        elif method == "tools/call":
            call()
        elif "id" in asked:
            refuse()
"""


def by_hand(text: str, **more: Any) -> ToolServer:
    return ToolServer("hand", sys.executable, ("-c", BY_HAND + text), **more)


def until(predicate: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not predicate():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture
def start() -> Iterator[Start]:
    """Makes servers and starts them; waits until each has said what it is."""
    made: list[ToolServers] = []

    def begin(*servers: ToolServer) -> ToolServers:
        found = ToolServers(servers)
        made.append(found)
        for one in servers:
            found.start(one.name)
        until(lambda: not found.starting)
        return found

    yield begin
    for one in made:
        assert one.close(LIMIT_S)


def call(servers: ToolServers, name: str, /, **arguments: Any) -> ToolResult:
    [tool] = [one for one in servers.tools if one.own == name]
    return servers.call(Planned(ToolCall("call_1", name), tool), arguments).result(LIMIT_S)


def state(servers: ToolServers, name: str = "hand") -> tuple[str, str]:
    connection = servers.connections[name]
    return connection.state, connection.why


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server over HTTP."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*COMMAND, str(port)], **quiet) as process:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        until(listens)
        yield f"http://127.0.0.1:{port}/mcp"
        process.kill()


def both(address: str, **more: Any) -> list[ToolServer]:
    return [
        ToolServer("things", LIGHT[0], tuple(LIGHT[1:]), **more),
        ToolServer("far", url=address, headers={"x-key": "${HOME}"}, **more),
    ]


@pytest.mark.parametrize("value", ["hunter2\r", "hünter2"])
def test_a_header_that_cannot_be_sent_is_not_quoted(start: Start, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TOKEN", value)
    servers = start(ToolServer("far", url="http://127.0.0.1:1/mcp?k=${TOKEN}", headers={"x-key": "Bearer ${TOKEN}"}))
    _, why = state(servers, "far")
    assert "the header x-key has characters that it cannot carry" in why
    assert "nter2" not in why


def test_tools_over_stdio_and_http(start: Start, address: str) -> None:
    for server in (ToolServer("things", COMMAND[0], tuple(COMMAND[1:])), *both(address)):
        servers = start(server)
        assert state(servers, server.name) == ("on", "")
        [add] = [one for one in servers.tools if one.own == "add"]
        assert add.description == "Adds two numbers."
        assert add.parameters["required"] == ["a", "b"]
        assert call(servers, "add", a=2, b=3).text == "5"
        failed = call(servers, "fails", text="x")
        assert failed.outcome == "failed"
        assert failed.text.startswith("Error")


@pytest.mark.parametrize("over_http", [False, True])
def test_a_hundred_megabytes_are_one_line(start: Start, address: str, over_http: bool) -> None:
    servers = start(both(address)[over_http])
    result = call(servers, "long", characters=100_000_000)
    assert result.outcome == "failed"
    assert f"more than {MAX_LINE // 2**20} MiB" in result.text
    assert len(result.text) < 200
    if over_http:
        assert call(servers, "add", a=1, b=1).text == "2"
    else:
        until(lambda: state(servers, "things")[0] == "failed")
        servers.start("things")
        until(lambda: not servers.starting)
        assert call(servers, "add", a=1, b=1).text == "2"


@pytest.mark.parametrize("over_http", [False, True])
def test_a_call_that_never_ends_is_given_up(start: Start, address: str, tmp_path: Path, over_http: bool) -> None:
    server = both(address, timeout=0.5)[over_http]
    servers = start(server)
    result = call(servers, "waits", path=str(tmp_path / "called"))
    assert (result.outcome, result.text) == ("failed", "Error: no answer within 0.5 s")
    servers.connections[server.name].server = msgspec.structs.replace(server, timeout=LIMIT_S)
    assert call(servers, "add", a=1, b=1).text == "2"


@pytest.mark.parametrize("over_http", [False, True])
def test_a_call_can_be_cancelled(start: Start, address: str, tmp_path: Path, over_http: bool) -> None:
    servers = start(both(address)[over_http])
    [tool] = [one for one in servers.tools if one.own == "waits"]
    file = tmp_path / "called"
    running = servers.call(Planned(ToolCall("call_1", "waits"), tool), {"path": str(file)})
    until(file.exists)
    running.cancel()
    with pytest.raises(CancelledError):
        running.result(LIMIT_S)
    assert call(servers, "add", a=1, b=1).text == "2"


def test_a_server_that_dies_in_a_call(start: Start) -> None:
    servers = start(THINGS)
    result = call(servers, "dies")
    assert (result.outcome, result.text) == ("failed", "Error: it has ended with code 3: out of luck")
    until(lambda: state(servers, "things") == ("failed", "it has ended with code 3: out of luck"))
    assert servers.tools == ()
    servers.start("things")
    until(lambda: not servers.starting)
    assert call(servers, "add", a=1, b=1).text == "2"


def test_a_server_over_http_that_goes_away(start: Start) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    servers = start(ToolServer("far", url=f"http://127.0.0.1:{port}/mcp"))
    reason = "nothing answers at its url (All connection attempts failed); start the server or correct the url"
    assert state(servers, "far") == ("failed", reason)


@pytest.mark.parametrize(
    ("server", "why"),
    [
        (ToolServer("hand", "/no/such/program"), "/no/such/program cannot be started: No such file or directory"),
        (ToolServer("hand", "sh", ("-c", "echo no module named x >&2; exit 4")), "it has ended with code 4: no module"),
        (ToolServer("hand", "sh", ("-c", "kill -9 $$")), "it has ended with signal 9"),
        (ToolServer("hand", "sh", ("${NO_SUCH_KEY}",)), "the environment variable NO_SUCH_KEY is not set"),
        (ToolServer("hand", "sh", env={"A": "${NO_SUCH_KEY}"}), "the environment variable NO_SUCH_KEY is not set"),
        (ToolServer("hand", url="http://127.0.0.1:1/mcp"), "nothing answers at its url"),
        (ToolServer("hand", "sh", cwd=Path("/no/such/folder")), "sh cannot be started: No such file or directory"),
        (by_hand("serve(3, None)"), "its answer is not as the protocol says"),
        (by_hand("read()\nsend('x' * (9 << 20))\ntime.sleep(600)"), "it sent a message of more than 8 MiB"),
    ],
)
def test_why_a_server_does_not_start(start: Start, server: ToolServer, why: str) -> None:
    found = state(start(server))
    assert found[0] == "failed"
    assert found[1].startswith(why)
    assert "\n" not in found[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("time.sleep(600)", "it has not listed its tools within 1 s"),
        (
            "for n in range(20_000): send('rubbish \\x1b[31m ' + str(n))\ntime.sleep(600)",
            "it has not listed its tools within 1 s; it wrote",
        ),
        ("while True: sys.stderr.write('a' * 10_000)", "it has not listed its tools within 1 s"),
    ],
)
async def test_a_server_that_says_nothing_in_time(text: str, why: str) -> None:
    connection = Connection(by_hand(text))
    await connection.run(start_s=1.0)
    assert connection.state == "failed"
    assert connection.why.startswith(why)


def test_rubbish_between_messages_is_skipped(start: Start) -> None:
    text = """
def call():
    send("Downloading 100 %")
    send("{")
    send('{"jsonrpc": "2.0", "id": 999, "result": {}}')
    send('[' * 100_000)
    answer({"content": [{"type": "text", "text": "fine"}]})
send("Server is starting")
serve([{"name": "a", "inputSchema": OBJECT}], call)
"""
    assert call(start(by_hand(text)), "a").text == "fine"


@pytest.mark.parametrize(
    ("answered", "said"),
    [
        ("answer({'content': 'no list'})", "Error: its answer is not as the protocol says"),
        ("answer({})", "Error: its answer is not as the protocol says"),
        ("refuse()", "Error: it answers: no"),
        ("answer({'content': [{'type': 'text', 'text': 'x'}], 'isError': True})", "Error: x"),
        ("answer({'content': [{'type': 'image', 'data': 'AAAA', 'mimeType': 'image/png'}]})", "[image omitted:"),
        ("answer({'content': [], 'structuredContent': {'n': 1}})", '{"n": 1}'),
        ("sys.exit(5)", "Error: it has ended with code 5"),
    ],
)
def test_answers_to_a_call(start: Start, answered: str, said: str) -> None:
    servers = start(by_hand(f'def call():\n    {answered}\nserve([{{"name": "a", "inputSchema": OBJECT}}], call)'))
    assert call(servers, "a").text.startswith(said)


def test_a_broken_tool_costs_that_tool_alone(start: Start) -> None:
    text = """
tools = [
    {"name": "good", "inputSchema": OBJECT},
    {"name": "broken", "inputSchema": {"type": "object", "properties": 3}},
    {"name": "none"}, {"inputSchema": OBJECT}, 3, {"name": "list", "inputSchema": []},
    {"name": "described", "description": ["a"], "inputSchema": OBJECT},
]
serve(tools, lambda: answer({"content": [{"type": "text", "text": "fine"}]}))
"""
    servers = start(by_hand(text))
    assert [one.own for one in servers.tools] == ["good"]
    left = {one.name: one.why for one in servers.connections["hand"].left_out}
    assert len(left) == 6
    assert left["broken"].startswith("its schema is broken")
    assert call(servers, "good").text == "fine"


def test_lists_after_the_first_take_no_memory(start: Start) -> None:
    """The package asks for the list again where a call does not fit it."""
    text = """
tool = {"name": "a", "inputSchema": OBJECT}
serve([tool], lambda: answer({"content": [], "tools": [tool]}))
"""
    servers = start(by_hand(text))
    for _ in range(2):
        call(servers, "a")
    assert len(servers.connections["hand"]._listed) == len(servers.tools) == 1


def test_pages_of_tools(start: Start) -> None:
    text = """
while True:
    method = read()
    if method == "initialize":
        hello()
    elif method == "tools/list":
        page = int((asked.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(page + 1)} if page < 3 else {}
        answer({"tools": [{"name": f"tool_{page}", "inputSchema": OBJECT}]} | more)
    elif "id" in asked:
        refuse()
"""
    servers = start(by_hand(text))
    assert [one.own for one in servers.tools] == ["tool_0", "tool_1", "tool_2", "tool_3"]


def test_a_process_gets_a_small_environment_and_the_variables_of_its_table(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "1234")
    server = ToolServer("things", LIGHT[0], tuple(LIGHT[1:]), env={"MINE": "a ${A_SECRET}"})
    servers = start(server)
    assert call(servers, "variable", name="A_SECRET").text == "not set"
    assert call(servers, "variable", name="MINE").text == "a 1234"


def test_no_process_outlives_its_server(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    text = f"""
import subprocess
child = subprocess.Popen(["sleep", "600"])
open({str(file)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
serve([], None)
"""
    servers = start(by_hand(text))
    pids = [int(word) for word in file.read_text().split()]
    servers.stop("hand")

    def ended(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            pass
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return not Path("/proc").exists()

    until(lambda: all(map(ended, pids)))


def test_a_process_that_ignores_its_end_is_killed(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    text = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open({str(file)!r}, "w").write(str(os.getpid()))
while True:
    try:
        serve([], None)
    except SystemExit:
        time.sleep(600)
"""
    servers = start(by_hand(text))
    assert servers.close(LIMIT_S)
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)


def test_tools_that_are_turned_off_are_not_offered(start: Start) -> None:
    servers = start(by_hand('serve([{"name": "add", "inputSchema": OBJECT}], None)'))
    [add] = [one for one in servers.tools if one.own == "add"]
    servers.toggle_tool(add)
    assert "add" not in [one.own for one in servers.tools]
    servers.toggle_tool(add)
    assert "add" in [one.own for one in servers.tools]


def test_an_unknown_server(start: Start) -> None:
    servers = start(by_hand("serve([], None)"))
    with pytest.raises(DFlashError, match="no server 'thing' in the settings; there are: hand"):
        servers.start("thing")


PAGES = [(500, b"broken"), (200, b"<html>"), (401, b"{}"), (200, b"x" * 9_000_000)]


@pytest.mark.parametrize(("status", "body"), PAGES)
def test_a_web_page_is_no_server(start: Start, status: int, body: bytes) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.serve_forever, daemon=True).start()
        found = state(start(ToolServer("hand", url=f"http://127.0.0.1:{page.server_port}/")))
        page.shutdown()
    assert found[0] == "failed"
    assert 0 < len(found[1]) < 400
    assert "\n" not in found[1]


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    offered.needs()
    monkeypatch.setattr(offered, "find_spec", lambda name: None)
    with pytest.raises(DFlashError, match=r'tools need the package mcp.*: pip install "dflash-tui\[tools\]"'):
        offered.needs()
