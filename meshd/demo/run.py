"""The demo itself: builds what is missing, starts real nodes, chats, and reports the traffic between them."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from meshd.admin.status import Status
from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.base.units import in_bytes
from meshd.build.fetch import demo_model
from meshd.build.interface import BuildProgress
from meshd.build.native import build, find
from meshd.demo.chat import chat
from meshd.demo.interface import DemoArgs, DemoOutput
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.node import crossed_bytes, ready_or_raise

PROMPT = "Write three sentences about the sea."
MAX_TOKENS = 96


def run(args: DemoArgs, out: DemoOutput) -> int:
    """Run the demo; return the exit code. Raises MeshdError."""
    log.set_up(level="warning")
    folder = Path(tempfile.mkdtemp(prefix="meshd-demo-"))
    try:
        asyncio.run(_demo(args, out, folder))
    except ExceptionGroup as group:
        raise first_error(group) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


async def _demo(args: DemoArgs, out: DemoOutput, folder: Path) -> None:
    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    out.progress("looking for llama.cpp and the model")
    if find(args.cache) is None:
        out.note("building llama.cpp for meshd, once; this takes some minutes")
        await build(args.cache, progress=progress)
    model = args.model if args.model is not None else await demo_model(args.cache, progress)
    async with Owner() as owner:
        # the workers get the file under another name in another folder, as on another machine
        out.progress("copying the model for the workers" if args.model is None else "preparing the nodes")
        copy = await asyncio.to_thread(other_copy, model, folder, whole=args.model is None)
        round_trips = [milliseconds / 1000 for milliseconds in args.round_trips] or [0.0]
        fleet = Fleet(
            FleetSpec(
                folder=folder,
                cache=args.cache,
                model=model,
                worker_model=copy,
                round_trips=round_trips,
            )
        )
        out.progress("starting the workers" if len(args.round_trips) > 1 else "starting the worker")
        await fleet.start_workers(owner)
        out.progress("starting the head")
        head = await fleet.start_head(owner)
        status = await head.until(ready_or_raise, on_status=lambda status: _tell(status, out))
        _show_split(status, out)
        tokens = await _chat(fleet.api_url(status), PROMPT, out)
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


async def _chat(url: str, prompt: str, out: DemoOutput) -> int:
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
