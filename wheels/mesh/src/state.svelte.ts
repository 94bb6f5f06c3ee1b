// The state of the mesh, as the node streams it: one server-sent event is the whole state.
// It is read with `fetch`, as EventSource cannot send an API key.
import { keyHeaders, refusal, Refusal } from './actions.ts';
import { flowsBetween, type Flows } from './flow.ts';
import { statesIn } from './remote/events.ts';
import type { CapacityReply } from './status.ts';
import type { State } from './types.ts';

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

interface Followed {
	/** The newest one. */
	state: State | null;
	/** Between the last two states. */
	flows: Flows;
	/** Why no state comes. */
	refusal: Refusal | null;
	/** When the state began to be out of date. */
	since: number | null;
}

export const mesh = $state<Followed>({ state: null, flows: {}, refusal: null, since: null });

/** Answers that are kept while the page is open. */
export const asked = $state<{ capacity: CapacityReply | null }>({ capacity: null });

/** Follow the state until `signal` is aborted; after a loss, try again, ever more slowly. */
export async function follow(signal: AbortSignal): Promise<void> {
	let pause = FIRST_PAUSE_MS;
	let at = 0; // when the last state came
	while (!signal.aborted) {
		try {
			for await (const state of states(signal)) {
				const now = performance.now();
				show(state, (now - at) / 1000);
				at = now;
				mesh.refusal = mesh.since = null;
				pause = FIRST_PAUSE_MS;
			}
		} catch (error) {
			if (error instanceof Refusal) mesh.refusal = error;
		}
		mesh.since ??= Date.now();
		if (mesh.refusal && ['session', 'invalid_api_key'].includes(mesh.refusal.code)) return;
		await new Promise((done) => setTimeout(done, pause));
		pause = Math.min(pause * 2, LONGEST_PAUSE_MS);
	}
}

async function* states(signal: AbortSignal): AsyncGenerator<State> {
	const response = await fetch('/mesh/state', { headers: keyHeaders(), signal });
	if (!response.ok || !response.body) throw await refusal(response);
	yield* statesIn(response.body);
}

/** Show `state`, which came `seconds` after the one before it. */
export function show(state: State, seconds: number): void {
	mesh.flows = flowsBetween(mesh.state, state, seconds);
	mesh.state = state;
}
