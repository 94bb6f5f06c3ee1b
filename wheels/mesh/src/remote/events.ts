// Events and comments of server-sent events, however the bytes are cut (WHATWG HTML, 9.2.6).

import { parsed } from '../parsed.ts';
import type { State } from '../types.ts';

export type StreamItem = { comment: string } | { event: string; data: string };

const MOST_CHARS = 4 << 20; // of one event

export async function* streamItems(body: ReadableStream<Uint8Array>): AsyncGenerator<StreamItem> {
	const reader = body.getReader();
	const decoder = new TextDecoder();
	let held = '';
	let data: string | null = null;
	let event = 'message';
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done) return; // an event without its blank line is not whole
			held += decoder.decode(value, { stream: true });
			const lines = held.split(/\r\n|\n|\r(?!$)/); // after a CR at the end an LF may follow
			held = lines.pop() ?? '';
			for (const line of lines) {
				if (line.startsWith(':')) yield { comment: line.slice(1).trim() };
				else if (line.startsWith('event:')) event = line.slice(6).trim();
				else if (line.startsWith('data:')) {
					const more = line.slice(line[5] === ' ' ? 6 : 5);
					data = data === null ? more : `${data}\n${more}`;
				} else if (line === '') {
					if (data !== null) yield { event, data };
					data = null;
					event = 'message';
				}
			}
			if (held.length + (data ?? '').length > MOST_CHARS) throw new Error('an event is too long');
		}
	} finally {
		reader.cancel().catch(() => {}); // the connection may be gone already
	}
}

// Yield each state of a stream until it ends.
export async function* statesIn(body: ReadableStream<Uint8Array>): AsyncGenerator<State> {
	for await (const item of streamItems(body)) {
		if (!('data' in item) || item.event !== 'state') continue;
		yield parsed(item.data) as State;
	}
}

const AGAIN_MS = 2000;

// Yield each state of the mesh, until the signal is aborted. A stream that ends is begun again.
export async function* meshStates(
	fetch: (path: string, init: { signal: AbortSignal }) => Promise<Response>,
	signal: AbortSignal,
): AsyncGenerator<State> {
	while (!signal.aborted) {
		try {
			const response = await fetch('/mesh/state', { signal });
			if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
			yield* statesIn(response.body);
		} catch {
			// the link says why
		}
		if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
	}
}
