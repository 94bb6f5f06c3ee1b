"""The time of a model's tokens explained: what this head saw, and what workers say of the same time.

Workers are asked when somebody wants to know. Each names spans by how long ago they were, so that no two
clocks have to agree; an error of a few milliseconds moves one token in or out of the span.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.devices.capacity import ask_capacity
from meshd.head.measures import (
    AwayTimes,
    ChosenRounds,
    RunFacts,
    RunningAnswer,
    Span,
    TimedAnswer,
    TimedAnswers,
    choose_rounds,
    choose_spans,
)
from meshd.head.survey import Surveyor, path_to
from meshd.head.worker_choice import Roster
from meshd.identity.keys import PeerId
from meshd.model.drafts import Drafts
from meshd.model.output import SAMPLED_BYTES, DevicePath
from meshd.model.status import SplitPart
from meshd.model.time_account import (
    ComputingTime,
    SpentTime,
    TimeAccount,
    TokenRounds,
    WayTime,
    prompt_account,
    round_account,
    token_account,
)
from meshd.peer.interface import Mesh
from meshd.plan.advise_together import advise_together
from meshd.plan.choose_split import SplitAdvice, advise
from meshd.plan.machines import Machines
from meshd.plan.wishes import read_llama_args
from meshd.wire.capacity import MAX_SPAN_US, AskCapacity, ComputedSpan

_ASK_SECONDS = 5.0
NOT_MEASURED = (
    "by tensors, meshd does not measure where the time goes, as all workers compute at once and wait for "
    "each other"
)

Computed = Mapping[str, Sequence[ComputedSpan]]
"""What each worker that knows it computed in each of the spans."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Explain where the time went.

    `now` by the clock of the answers. The accounts are None before there was an answer for them.

    `round`: of the newest time in which answers were streamed, if `token` is not of that; else why not.
    """

    facts: RunFacts
    split: tuple[SplitPart, ...]
    answers: tuple[TimedAnswer, ...]
    active: int
    now: float
    token: TimeAccount | None
    prompt: TimeAccount | None
    round: TimeAccount | None
    why_no_round: str
    running: RunningAnswer | None
    advice: SplitAdvice


async def explain(
    facts: RunFacts,
    split: Sequence[SplitPart],
    log: TimedAnswers,
    away: AwayTimes,
    mesh: Mesh,
    peers: Mapping[str, PeerId],
    surveyor: Surveyor | None,
    roster: Roster,
    *,
    drafts: Drafts,
) -> Explained:
    """Explain where the time of the last answers went, and of the last rounds.

    `split` as it is pushed; `peers`: the workers by their names; `drafts`: of this run, as meshd chose them;
    `roster`: whom the head could ask now.
    """
    loop = asyncio.get_running_loop()
    configured = bool(read_llama_args(facts.options.llama_args).speculation)
    may_draft = configured or drafts.longest > 0  # rounds may make more tokens
    chosen = choose_spans(log, drafts=may_draft)
    busy = choose_rounds(log, away, chosen.token)
    if facts.plan.by_tensors:  # workers compute at once, and wait for each other in sums: no parts of a sum
        chosen = replace(chosen, token=None, prompt=None)
        busy = ChosenRounds(why_not=NOT_MEASURED)
    spans = [span for span in (chosen.token, chosen.prompt, busy.span) if span is not None]
    near = near_paths(mesh, peers)
    computed = await ask_computed(facts, mesh, peers, near, spans)
    facts = await _as_now(facts, near, peers, surveyor)
    ways = ways_of(facts, split, near)
    token = prompt = a_round = None
    spent_of = partial(_spent, facts, away, ways, computed=computed, spans=spans)
    if chosen.token is not None:
        token = token_account(spent_of(chosen.token, made=chosen.made), chosen.made)
    if chosen.prompt is not None:
        prompt = prompt_account(spent_of(chosen.prompt), chosen.prompt_tokens, chosen.queue)
    if busy.span is not None:
        a_round = round_account(spent_of(busy.span, made=busy.made), busy.made)
    machines = await _compared(facts, surveyor, roster)
    # in a thread: it plans several times, and tokens pass this loop meanwhile
    by_layers = partial(advise, drafts=may_draft, only_by_layers=configured or drafts.model > 0)
    advise_now = advise_together if facts.plan.by_tensors else by_layers
    advice = await asyncio.to_thread(
        advise_now, facts.layers, facts.work, machines, facts.options, facts.plan
    )
    return Explained(
        facts=facts,
        split=tuple(split),
        answers=log.answers,
        active=log.active,
        now=loop.time(),
        token=token,
        prompt=prompt,
        round=a_round,
        why_no_round=busy.why_not,
        running=log.running,
        advice=advice,
    )


async def _compared(facts: RunFacts, surveyor: Surveyor | None, roster: Roster) -> Machines:
    """Survey the machines that `meshd plan` would compare now; take the load's where they cannot be asked."""
    if surveyor is None:
        return facts.machines
    try:
        found = await surveyor.compared(facts.work, facts.options, roster, facts.held, measure=False)
    except MeshdError:
        return facts.machines
    spared = {node for node, _ in found.spared}
    offers = tuple(offer for offer in found.machines.offers if offer.node not in spared)
    if not {facts.options.node_name, *(offer.node for offer in offers)}.issuperset(facts.plan.nodes):
        return facts.machines  # a worker that is used does not answer, or is called otherwise
    return replace(found.machines, offers=offers)


async def _as_now(
    facts: RunFacts,
    near: Mapping[str, DevicePath | None],
    peers: Mapping[str, PeerId],
    surveyor: Surveyor | None,
) -> RunFacts:
    """Use the paths as they are now: those at the load were new, perhaps. Nothing is measured for this."""
    machines, options = facts.machines, facts.options
    offers = tuple(replace(offer, path=near.get(offer.node) or offer.path) for offer in machines.offers)
    machines = replace(machines, offers=offers)
    if surveyor is not None:
        names = {peer: name for name, peer in peers.items()}
        found = await surveyor.speeds_of(
            names,
            machines.own,
            facts.work.texts,
            options.node_name,
            lambda _text: None,
            measure=False,
            recent=True,
        )
        speeds, paths = {**machines.speeds, **found.speeds}, {**machines.paths, **found.paths}
        machines = replace(machines, speeds=speeds, paths=paths)
    return replace(facts, machines=machines)


def near_paths(mesh: Mesh, peers: Mapping[str, PeerId]) -> Mapping[str, DevicePath | None]:
    """Return the path from the head to each of these workers."""
    paths = {status.peer: path_to(status.paths) for status in mesh.peers()}
    return {name: paths.get(peer) for name, peer in peers.items()}


async def ask_computed(
    facts: RunFacts,
    mesh: Mesh,
    peers: Mapping[str, PeerId],
    near: Mapping[str, DevicePath | None],
    spans: Sequence[Span],
) -> Computed:
    """Ask all workers what they computed; those that do not answer, or do not know, are left out."""
    loop = asyncio.get_running_loop()
    leases = {offer.node: offer.offer.lease_id for offer in facts.machines.offers}
    found: dict[str, Sequence[ComputedSpan]] = {}

    async def ask(name: str, peer: PeerId) -> None:
        path = near.get(name)
        late = path.rtt / 2 if path is not None else 0.0  # the question is on its way
        now = loop.time() + late
        ago = tuple((_ago(now, a), _ago(now, b)) for a, b in spans)
        asked = AskCapacity(recent=True, lease=leases.get(name, b""), spans=ago)
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                answer = await ask_capacity(mesh, peer, asked, lambda _text: None)
        except (MeshdError, TimeoutError):
            return
        if len(answer.computed) == len(spans):
            found[name] = answer.computed

    try:
        async with Owner() as owner:
            for name, peer in peers.items() if spans else ():
                owner.start_for(peer.short, ask(name, peer), name="computed")
    except ExceptionGroup as group:
        raise first_error(group) from None
    return found


def _ago(now: float, then: float) -> int:
    return min(MAX_SPAN_US, max(0, int((now - then) * 1e6)))


def _spent(
    facts: RunFacts,
    away: AwayTimes,
    ways: Sequence[WayTime],
    span: Span,
    *,
    computed: Computed,
    spans: Sequence[Span],
    made: TokenRounds | None = None,
) -> SpentTime:
    """Account for `spans`, those that `computed` is of. `made` None: a prompt, which has no prediction."""
    (begin, end), place = span, spans.index(span)
    head = facts.options.node_name
    device_s: Mapping[str, float] = {}  # of a round
    rounds = made.rounds if made is not None else 0
    if made is not None:
        device_s = facts.predictor.device_seconds(facts.plan, made.computed / made.rounds)
    taking = [share.device for share in facts.plan.taking]
    own = {device.label: device_s.get(device.label, 0.0) * rounds for device in taking if device.is_head}
    workers: list[ComputingTime] = []
    for node in facts.plan.workers:
        labels = [device.label for device in taking if device.node == node]
        if node in computed:
            workers.append(ComputingTime(", ".join(labels), computed[node][place].busy_us / 1e6, True))
        elif known := sum(device_s.get(label, 0.0) for label in labels) * rounds:
            workers.append(ComputingTime(", ".join(labels), known, False))
    return SpentTime(
        seconds=max(0.0, end - begin),
        away=away.away(begin, end),
        held=away.held(begin, end),
        head=head,
        own=tuple(ComputingTime(label, seconds, False) for label, seconds in own.items() if seconds),
        workers=tuple(workers),
        ways=tuple(ways),
    )


def ways_of(
    facts: RunFacts, split: Sequence[SplitPart], near: Mapping[str, DevicePath | None]
) -> list[WayTime]:
    """Return the known ways of a token, in their order; `near`: from the head."""
    head = facts.options.node_name
    wide = 2 if facts.options.activations == "f16" else 4
    state = wide * facts.layers.widths.embedding
    pushed = {part.node for part in split if part.push}
    stops = [head, *(share.device.node for share in facts.plan.taking), head]
    hops: list[tuple[str, str]] = []
    for before, behind in pairwise(stops):
        if before == behind:
            continue
        if head in (before, behind) or behind in pushed:
            hops.append((before, behind))
        else:
            hops += [(before, head), (head, behind)]
    found = []
    for number, (before, behind) in enumerate(hops):
        path = near.get(behind if before == head else before) if head in (before, behind) else None
        path = path or facts.machines.paths.get((before, behind))
        if path is None:
            continue
        is_last = number == len(hops) - 1
        if is_last:
            crossing = _back(facts)
        else:
            crossing = 0 if number == 0 and facts.plan.input_on_worker else state  # numbers of tokens
        order = near.get(behind) if behind != head and behind in pushed else None
        found.append(
            WayTime(
                f"{before} → {behind}",
                path.rtt / 2,
                path.seconds(crossing),
                is_result=is_last,
                ordered=order.rtt / 2 if order is not None else None,
            )
        )
    return found


def _back(facts: RunFacts) -> int:
    """Count the bytes of a token that the last worker sends to the head."""
    worker = facts.plan.output_worker
    if worker is None:
        return (2 if facts.options.activations == "f16" else 4) * facts.layers.widths.embedding
    return SAMPLED_BYTES if worker.has_top_k else 4 * facts.layers.widths.vocabulary
