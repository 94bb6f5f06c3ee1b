// How much flows on each path: the difference of two states.
import type { State } from './types.ts';

/** Bytes per second, from this node and to it. */
export interface Flow {
	sent: number;
	received: number;
}

/** Flows by the ids of peers. */
export type Flows = Record<string, Flow>;

/** What passes for silence: messages that only keep a path open. */
const SILENT_BYTES_S = 4000;

/** Return the flows between two states that came `seconds` apart; a new link counts from its next state on. */
export function flowsBetween(before: State | null, after: State, seconds: number): Flows {
	const flows: Flows = {};
	if (!before || seconds <= 0) return flows;
	const links = new Map(before.status.peers.map((peer) => [peer.id, peer.link]));
	for (const { id, link } of after.status.peers) {
		const old = links.get(id);
		if (!link || !old || old.since !== link.since || old.kind !== link.kind) continue;
		flows[id] = {
			sent: Math.max(0, link.sent_bytes - old.sent_bytes) / seconds,
			received: Math.max(0, link.received_bytes - old.received_bytes) / seconds
		};
	}
	return flows;
}

/** Return true if tokens or weights flow, not only messages that keep the path open. */
export function isFlowing(flow: Flow | undefined): flow is Flow {
	return flow !== undefined && flow.sent + flow.received >= SILENT_BYTES_S;
}
