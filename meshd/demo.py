"""Run the demo: real nodes on this machine, one model, one answer, and the traffic between the nodes."""

import asyncio
import http.client
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from meshd.admin.status import Status
from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.base.units import in_bytes
from meshd.build.fetch import demo_model
from meshd.build.interface import BuildProgress
from meshd.build.native import build, find
from meshd.fleet.fleet import Fleet, FleetSpec, crossed_bytes, ready_or_raise

PROMPT = "Write three sentences about the sea."
MAX_TOKENS = 96
_ANSWER_SECONDS = 120.0  # of silence


class DemoOutput(Protocol):
    """The output of results, remarks and progress (`meshd.cli.output.Output`)."""

    def line(self, text: str = "") -> None: ...
    def raw(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, step: str, share: float | None = None) -> None: ...


def run(out: DemoOutput, *, model: Path | None, cache: Path, round_trips: Sequence[float] = ()) -> int:
    """Run the demo; return the exit code. Raises MeshdError.

    `model` None: SmolLM2, fetched into `cache`. `round_trips`: one worker for each, so far away, in ms.
    """
    log.set_up(level="warning")
    folder = Path(tempfile.mkdtemp(prefix="meshd-demo-"))
    try:
        asyncio.run(_demo(out, folder, model, cache, round_trips))
    except ExceptionGroup as group:
        raise first_error(group) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _demo(
    out: DemoOutput, folder: Path, given: Path | None, cache: Path, round_trips: Sequence[float]
) -> None:
    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    out.progress("looking for llama.cpp and the model")
    if find(cache) is None:
        out.note("building llama.cpp for meshd, once; this takes some minutes")
        await build(cache, progress=progress)
    model = given if given is not None else await demo_model(cache, progress)
    async with Owner() as owner:
        # the workers get the file under another name in another folder, as on another machine
        out.progress("copying the model for the workers" if given is None else "preparing the nodes")
        copy = await asyncio.to_thread(other_copy, model, folder, whole=given is None)
        fleet = Fleet(
            FleetSpec(
                folder=folder,
                cache=cache,
                model=model,
                worker_model=copy,
                round_trips=[milliseconds / 1000 for milliseconds in round_trips] or [0.0],
            )
        )
        out.progress("starting the workers" if len(round_trips) > 1 else "starting the worker")
        await fleet.start_workers(owner)
        out.progress("starting the head")
        head = await fleet.start_head(owner)
        status = await head.until(ready_or_raise, on_status=lambda status: _tell(status, out))
        _show_split(status, out)
        tokens = await show_answer(fleet.api_url(status), PROMPT, out)
        _show_wire(status, await head.status(), tokens, out)
        out.progress("stopping the nodes")
        owner.cancel()


def other_copy(model: Path, folder: Path, *, whole: bool) -> Path:
    """Return a copy of `model` under another name below `folder`: all its bytes when `whole`, else a link.

    A symbolic one: a hard link would change the file's status time, by which a program that has it open
    knows that somebody has touched it.
    """
    copy = folder / "a-friends-disk" / "renamed.gguf"
    copy.parent.mkdir(parents=True)
    if whole:
        shutil.copyfile(model, copy)
    else:
        copy.symlink_to(model)
    return copy


def _tell(status: Status, out: DemoOutput) -> None:
    if status.model is not None:
        out.progress(status.model.reason, status.model.progress)


def _show_split(status: Status, out: DemoOutput) -> None:
    model = status.model
    if model is None:
        raise MeshdError("the head shows no model")
    out.line(f"model    {model.name}, loaded in {model.load_seconds:.1f} s")
    for peer in status.peers:
        if peer.link is not None and peer.link.rtt_ms is not None:
            out.line(f"link     {peer.name}: {peer.link.kind}, round trip {peer.link.rtt_ms:.1f} ms")
    for part in model.split:
        size = in_bytes(part.bytes)
        out.line(f"split    {part.node} {part.device}: {part.layers} layers, {size} of weights")
    readers = (
        "the worker from its own file" if len(model.workers) == 1 else "the workers from their own files"
    )
    out.line(f"weights  {in_bytes(model.weights_local_bytes)} read by {readers},")
    out.line(f"         {model.weights_network_bytes} bytes of weights sent over the network")


async def show_answer(url: str, prompt: str, out: DemoOutput) -> int:
    if not url:
        raise MeshdError("the head shows no API")
    out.line(f"API      {url}/v1")
    out.line(f"you      {prompt}")
    out.progress("reading the prompt")
    loop = asyncio.get_running_loop()
    began = loop.time()
    label = "model    "

    def show(text: str) -> None:
        nonlocal label
        out.raw(label + text)
        label = ""

    tokens = await chat(url, prompt, max_tokens=MAX_TOKENS, on_text=show)
    out.line()
    out.line(f"speed    {tokens / (loop.time() - began):.1f} tokens per second, including the prompt")
    return tokens


def _show_wire(before: Status, after: Status, tokens: int, out: DemoOutput) -> None:
    loading = in_bytes(crossed_bytes(before))
    asking = in_bytes(crossed_bytes(after) - crossed_bytes(before))
    out.line(f"network  {loading} to load, {asking} for the prompt and {tokens} tokens")
    if after.model is not None and after.model.bytes_per_token is not None:
        out.line(f"         {in_bytes(after.model.bytes_per_token)} per generated token, both directions")


async def chat(url: str, prompt: str, *, max_tokens: int, on_text: Callable[[str], None]) -> int:
    """Stream the answer to `on_text`; return its number of tokens. Raises MeshdError."""
    loop = asyncio.get_running_loop()

    def run() -> int:
        count = 0
        for text in _stream(url, prompt, max_tokens):
            count += 1
            loop.call_soon_threadsafe(on_text, text)
        return count

    return await asyncio.to_thread(run)


def _stream(url: str, prompt: str, max_tokens: int) -> Iterator[str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_SECONDS)
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    try:
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise MeshdError(f"the API answered {answer.status}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            text = _delta(line.decode(errors="replace").strip())
            if text:
                yield text
    except OSError as error:
        raise MeshdError(f"the connection to the API broke: {error}") from error
    finally:
        connection.close()


def _delta(line: str) -> str:
    """Return the text in one line of the event stream. Raises MeshdError for an error event."""
    if not line.startswith("data: ") or line == "data: [DONE]":
        return ""
    event = json.loads(line.removeprefix("data: "))
    if "error" in event:
        raise MeshdError(f"the answer ended early: {event['error'].get('message', event['error'])}")
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")
