// The link of this page to a node: requests over data channels, with a new channel whenever one is lost.
// `fetch` is what the browser's own is, for the paths of the node.

import { texts } from '../texts.ts';
import { encodeHead, HeadReader } from './frames.ts';
import type { AnswerHead } from './frames.ts';
import { Requests } from './requests.ts';
import type { RequestEvent } from './requests.ts';
import { ConnectError } from './signalling.ts';
import type { Channel } from './signalling.ts';

export type LinkState =
	| { kind: 'connecting'; attempt: number; why: string }
	| { kind: 'connected'; milliseconds: number | null; way: Channel['kind'] }
	| { kind: 'reconnecting'; attempt: number; why: string }
	| { kind: 'refused'; why: string };

export type Connect = (signal: AbortSignal) => Promise<Channel>;

export interface LinkInit {
	method?: string;
	headers?: HeadersInit;
	body?: string | Uint8Array;
	signal?: AbortSignal | null;
}

const SESSION_BYTES = 16;
const PING_MS = 5000;
const SILENT_MS = 12_000; // without a message the channel is dead, whatever the browser says
const BACKOFF_MS = [250, 500, 1000, 2000, 4000, 8000];
const FULL_BYTES = 256 << 10; // unsent in the channel; more would only wait there
const LOOK_MS = 20; // between two looks whether it has room
const PIECE_BYTES = 64 << 10;
const NULL_BODY = new Set([101, 204, 205, 304]); // statuses that the Response class wants no body for

export class LinkError extends Error {}

export class Link {
	state: LinkState = { kind: 'connecting', attempt: 0, why: '' };
	#connect: Connect;
	#shows: (state: LinkState) => void;
	#requests: Requests;
	#calls = new Map<number, Call>();
	#waiting: (() => void)[] = []; // for a place among the requests
	#channel: Channel | null = null;
	#heard = 0;
	#pings = new Map<number, number>(); // when each was sent
	#nonce = 0;
	#look: ReturnType<typeof setTimeout> | null = null;
	#closed = new AbortController();
	#retry: (() => void) | null = null;

	// `shows` gets each new state.
	constructor(connect: Connect, shows: (state: LinkState) => void = () => {}) {
		this.#connect = connect;
		this.#shows = shows;
		this.#requests = new Requests(crypto.getRandomValues(new Uint8Array(SESSION_BYTES)));
	}

	// Keep a channel until `close`, or until the node refuses this page.
	async run(): Promise<void> {
		const hurry = () => this.#retry?.();
		globalThis.addEventListener?.('online', hurry);
		const timer = setInterval(() => this.#ping(), PING_MS);
		let was = false;
		try {
			for (let attempt = 0; !this.#isOver; attempt++) {
				let why = '';
				try {
					const channel = await this.#connect(this.#closed.signal);
					if (await this.#carry(channel)) {
						was = true;
						attempt = 0;
					}
				} catch (error) {
					why = error instanceof Error ? error.message : String(error);
					if (error instanceof ConnectError && error.isRefused) {
						this.#refuse([why, error.hint].filter(Boolean).join(': '));
					}
				}
				if (this.#isOver) return;
				this.#show({ kind: was ? 'reconnecting' : 'connecting', attempt: attempt + 1, why });
				await this.#pause(BACKOFF_MS[Math.min(attempt, BACKOFF_MS.length - 1)]!);
			}
		} finally {
			clearInterval(timer);
			globalThis.removeEventListener?.('online', hurry);
		}
	}

	close(): void {
		this.#closed.abort();
		this.#channel?.close();
		this.#retry?.();
		for (const call of [...this.#calls.values()]) this.#end(call, new LinkError(texts.remote.closed));
	}

	async fetch(path: string, init: LinkInit = {}): Promise<Response> {
		const { signal } = init;
		signal?.throwIfAborted();
		while (this.#requests.isFull) await new Promise<void>((resolve) => this.#waiting.push(resolve));
		signal?.throwIfAborted();
		if (this.#isOver) throw new LinkError(this.state.kind === 'refused' ? this.state.why : texts.remote.closed);
		const method = init.method ?? 'GET';
		const headers = [...new Headers(init.headers)];
		const body = typeof init.body === 'string' ? new TextEncoder().encode(init.body) : (init.body ?? new Uint8Array());
		const number = this.#requests.open(encodeHead({ method, path, headers }));
		const call = new Call(number, body, (count) => {
			this.#requests.read(number, count);
			this.#pump();
		});
		call.onGone = () => this.#end(call, null);
		this.#calls.set(number, call);
		const abort = () => this.#end(call, signal?.reason ?? new DOMException('aborted', 'AbortError'));
		signal?.addEventListener('abort', abort, { once: true });
		call.unlisten = () => signal?.removeEventListener('abort', abort);
		this.#pump();
		return call.response;
	}

	get #isOver(): boolean {
		return this.#closed.signal.aborted || this.state.kind === 'refused';
	}

	// Carry messages until the channel is over; tells whether the node welcomed this page.
	#carry(channel: Channel): Promise<boolean> {
		return new Promise((resolve) => {
			let wasWelcome = false;
			this.#channel = channel;
			this.#heard = performance.now();
			this.#pings.clear();
			this.#requests.connect();
			const end = () => {
				if (this.#channel !== channel) return;
				this.#channel = null;
				this.#requests.disconnect();
				resolve(wasWelcome);
			};
			channel.onclose = end;
			channel.onmessage = (message) => {
				if (this.#channel !== channel) return;
				this.#heard = performance.now();
				try {
					for (const event of this.#requests.receive(message)) {
						wasWelcome ||= event.kind === 'welcomed';
						this.#take(event, channel);
					}
				} catch {
					channel.close(); // it broke the rules: a new channel says where both are
					end();
					return;
				}
				this.#pump();
			};
			this.#pump();
		});
	}

	#take(event: RequestEvent, channel: Channel): void {
		switch (event.kind) {
			case 'welcomed':
				this.#show({ kind: 'connected', milliseconds: null, way: channel.kind });
				this.#ping();
				break;
			case 'pong': {
				const sent = this.#pings.get(event.nonce);
				if (sent === undefined) break;
				this.#pings.clear();
				const milliseconds = Math.round(performance.now() - sent);
				this.#show({ kind: 'connected', milliseconds, way: channel.kind });
				break;
			}
			case 'refused':
				this.#refuse(event.why);
				channel.close();
				break;
			case 'arrived': {
				const call = this.#calls.get(event.number);
				if (!call) break;
				try {
					call.arrived(event.data, event.isLast);
				} catch (error) {
					this.#end(call, error);
					break;
				}
				if (event.isLast) this.#forget(call);
				break;
			}
			case 'failed': {
				const call = this.#calls.get(event.number);
				if (call) this.#end(call, new LinkError(event.why));
				break;
			}
		}
	}

	// The node wants nothing of this page, nor will it later.
	#refuse(why: string): void {
		this.#show({ kind: 'refused', why });
		for (const call of [...this.#calls.values()]) this.#end(call, new LinkError(why));
	}

	// End a request with an error, or null if nobody wants its answer.
	#end(call: Call, error: unknown): void {
		this.#requests.forget(call.number);
		this.#forget(call);
		if (error !== null) call.fail(error);
		this.#pump();
	}

	#forget(call: Call): void {
		call.unlisten();
		this.#calls.delete(call.number);
		this.#waiting.shift()?.();
	}

	#pump(): void {
		const channel = this.#channel;
		if (!channel) return;
		for (const call of this.#calls.values()) this.#feed(call);
		while (channel.bufferedAmount < FULL_BYTES) {
			const message = this.#requests.transmit();
			if (!message) return;
			try {
				channel.send(message);
			} catch {
				channel.close(); // `onclose` follows; what was not sent is sent on the next one
				return;
			}
			for (const call of this.#calls.values()) this.#feed(call);
		}
		this.#look ??= setTimeout(() => {
			this.#look = null;
			this.#pump();
		}, LOOK_MS);
	}

	// Give the requests more of a body, as there is room.
	#feed(call: Call): void {
		if (call.isFed) return;
		while (call.at < call.body.length && this.#requests.waiting(call.number) < FULL_BYTES) {
			this.#requests.write(call.number, call.body.subarray(call.at, call.at + PIECE_BYTES));
			call.at += PIECE_BYTES;
		}
		if (call.at < call.body.length) return;
		call.isFed = true;
		this.#requests.end(call.number);
	}

	#ping(): void {
		const channel = this.#channel;
		if (!channel) return;
		if (performance.now() - this.#heard > SILENT_MS) {
			channel.close();
			channel.onclose();
			return;
		}
		this.#pings.set(++this.#nonce, performance.now());
		this.#requests.ping(this.#nonce);
		this.#pump();
	}

	#pause(milliseconds: number): Promise<void> {
		return new Promise((resolve) => {
			const timer = setTimeout(resolve, milliseconds);
			this.#retry = () => {
				clearTimeout(timer);
				resolve();
			};
		});
	}

	#show(state: LinkState): void {
		this.state = state;
		this.#shows(state);
	}
}

// One request under way: what is left of its body, and its answer as it comes.
class Call {
	readonly response: Promise<Response>;
	at = 0; // of the body
	isFed = false;
	onGone: () => void = () => {};
	unlisten: () => void = () => {};
	#head = new HeadReader();
	#begun = false;
	#resolve!: (response: Response) => void;
	#reject!: (error: unknown) => void;
	#came: Uint8Array[] = [];
	#isWhole = false;
	#error: { error: unknown } | null = null;
	#wants: (() => void) | null = null;

	readonly number: number;
	readonly body: Uint8Array;
	#used: (count: number) => void;

	// `used` frees the room of so many bytes.
	constructor(number: number, body: Uint8Array, used: (count: number) => void) {
		this.number = number;
		this.body = body;
		this.#used = used;
		this.response = new Promise((resolve, reject) => {
			this.#resolve = resolve;
			this.#reject = reject;
		});
	}

	arrived(data: Uint8Array, isLast: boolean): void {
		this.#isWhole ||= isLast;
		if (this.#begun) {
			if (data.length) this.#came.push(data);
		} else {
			const found = this.#head.feed(data);
			this.#used(data.length - (found?.rest.length ?? 0));
			if (found) this.#begin(found.head, found.rest);
			else if (isLast) throw new LinkError(texts.remote.errors.headCut);
		}
		this.#wants?.();
	}

	fail(error: unknown): void {
		this.#error = { error };
		this.#reject(error);
		this.#wants?.();
	}

	#begin(head: AnswerHead, rest: Uint8Array): void {
		this.#begun = true;
		if (rest.length) this.#came.push(rest);
		const init = { status: head.status, headers: head.headers };
		this.#resolve(new Response(NULL_BODY.has(head.status) ? null : this.#stream(), init));
	}

	#stream(): ReadableStream<Uint8Array> {
		return new ReadableStream(
			{
				pull: async (controller) => {
					while (!this.#came.length && !this.#isWhole && !this.#error) {
						await new Promise<void>((resolve) => (this.#wants = resolve));
					}
					this.#wants = null;
					if (this.#error) return controller.error(this.#error.error);
					const data = this.#came.shift();
					if (data) {
						controller.enqueue(data);
						this.#used(data.length);
					} else controller.close();
				},
				cancel: () => this.onGone(),
			},
			{ highWaterMark: 0 },
		);
	}
}
