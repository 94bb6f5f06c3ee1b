// The state of the mesh, as the node streams it: one server-sent event is the whole state.
// It is read with `fetch`, as EventSource cannot send an API key.
import { keyHeaders, refusal, Refusal } from './actions.ts';
import type { State } from './types.ts';

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

/** `state`: the newest one. `refusal`: why none comes. `since`: from when on it has been out of date. */
export const mesh = $state<{ state: State | null; refusal: Refusal | null; since: number | null }>({
	state: null,
	refusal: null,
	since: null
});

/** Follow the state until `signal` is aborted; after a loss, try again, ever more slowly. */
export async function follow(signal: AbortSignal): Promise<void> {
	let pause = FIRST_PAUSE_MS;
	while (!signal.aborted) {
		try {
			for await (const state of states(signal)) {
				mesh.state = state;
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
	const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
	let rest = '';
	for (;;) {
		const { done, value } = await reader.read();
		if (done) return;
		const events = (rest + value).split('\n\n');
		rest = events.pop() ?? '';
		for (const event of events) {
			const data = event.split('\n').filter((line) => line.startsWith('data:'));
			if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join('\n')) as State;
		}
	}
}
