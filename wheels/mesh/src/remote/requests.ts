// The requests of this page to a node, over data channels that come and go. Nothing here knows a channel or a
// clock: messages in, messages and events out. The other end is meshd/gateway/browser_requests.py.
//
// Each request and each answer is a stream of bytes, of which the sender keeps what the other side has not
// received. On a new channel both say how far they are, and go on from there: every byte arrives once, and no
// request is begun twice.

import { texts } from '../texts.ts';
import { decode, encode, joined, MAX_DATA_BYTES, MOST_REQUESTS, ProtocolError } from './frames.ts';
import type { FromPage, Place } from './frames.ts';

const ANSWER_WINDOW = 256 << 10;
const REQUEST_WINDOW = 128 << 10;
const ALLOW_EVERY = 32 << 10; // bytes received, or read, until the sender hears of it

// Bytes that are kept until the other side has received them.
class OutgoingStream {
	#held = new Uint8Array(0);
	#base = 0; // offset of the first byte that is held
	#sent = 0;
	#allowed = REQUEST_WINDOW;
	#isEnded = false;
	#isEndSent = false;

	get held(): number {
		return this.#held.length;
	}

	write(data: Uint8Array): void {
		this.#held = joined(this.#held, data);
	}

	end(): void {
		this.#isEnded = true;
	}

	next(number: number): FromPage | null {
		const at = this.#sent - this.#base;
		const size = Math.max(0, Math.min(MAX_DATA_BYTES, this.#held.length - at, this.#allowed - this.#sent));
		const isLast = this.#isEnded && at + size === this.#held.length;
		if (!size && (!isLast || this.#isEndSent)) return null;
		const offset = this.#sent;
		this.#sent += size;
		this.#isEndSent = isLast;
		return { kind: 'data', number, offset, data: this.#held.slice(at, at + size), isLast };
	}

	progress(place: Place): void {
		if (place.taken < this.#base || place.taken > this.#sent) throw new ProtocolError('it received what was not sent');
		this.#held = this.#held.slice(place.taken - this.#base);
		this.#base = place.taken;
		this.#allowed = Math.max(this.#allowed, place.allowed);
	}

	resume(place: Place): void {
		this.progress(place);
		this.#sent = this.#base;
		this.#allowed = place.allowed;
		this.#isEndSent = false;
	}
}

// Progress with bytes that come: each is taken once, and no more than the window wait to be read.
class IncomingStream {
	#taken = 0;
	#read = 0;
	#shown = { taken: 0, allowed: ANSWER_WINDOW };
	isEnded = false;

	take(offset: number, data: Uint8Array, isLast: boolean): Uint8Array {
		const end = offset + data.length;
		if (offset > this.#taken || end > this.#read + ANSWER_WINDOW) throw new ProtocolError('bytes out of order');
		if (this.isEnded && end > this.#taken) throw new ProtocolError('bytes after the end');
		const fresh = data.slice(this.#taken - offset);
		this.#taken = Math.max(this.#taken, end);
		this.isEnded ||= isLast;
		return fresh;
	}

	read(count: number): void {
		this.#read += count;
	}

	place(number: number): Place {
		this.#shown = { taken: this.#taken, allowed: this.#read + ANSWER_WINDOW };
		return { number, ...this.#shown };
	}

	get isDue(): boolean {
		const { taken, allowed } = this.#shown;
		const isFar = this.#taken - taken >= ALLOW_EVERY || this.#read + ANSWER_WINDOW - allowed >= ALLOW_EVERY;
		return isFar && !this.isEnded;
	}
}

interface Request {
	question: OutgoingStream;
	answer: IncomingStream;
	wasSent: boolean; // a node may have begun it
}

export type RequestEvent =
	| { kind: 'welcomed' }
	| { kind: 'arrived'; number: number; data: Uint8Array; isLast: boolean } // `read` frees its room
	| { kind: 'failed'; number: number; why: string }
	| { kind: 'pong'; nonce: number }
	| { kind: 'refused'; why: string }; // the channel is of no use, nor will the next one be

export const FORGOTTEN = texts.remote.errors.forgotten;

// `connect` begins a channel, `disconnect` ends it. `receive` takes a message; `transmit` gives the next one to
// send: call it after anything else until it gives null.
export class Requests {
	#session: Uint8Array;
	#requests = new Map<number, Request>();
	#turns: number[] = []; // the one to send next first
	#last = 0;
	#first: FromPage[] = []; // what goes before all streams
	#hasChannel = false;
	#isWelcome = false; // on this channel
	#wasWelcome = false; // on any

	constructor(session: Uint8Array) {
		this.#session = session;
	}

	get isFull(): boolean {
		return this.#requests.size >= MOST_REQUESTS;
	}

	// Begin a request, whose stream begins with `head`. Not when it is full.
	open(head: Uint8Array): number {
		if (this.isFull) throw new TypeError('too many requests at a time');
		const number = ++this.#last;
		const request = { question: new OutgoingStream(), answer: new IncomingStream(), wasSent: false };
		request.question.write(head);
		this.#requests.set(number, request);
		this.#turns.push(number);
		return number;
	}

	write(number: number, data: Uint8Array): void {
		this.#requests.get(number)?.question.write(data);
	}

	// How many bytes of a request wait to be received.
	waiting(number: number): number {
		return this.#requests.get(number)?.question.held ?? 0;
	}

	end(number: number): void {
		this.#requests.get(number)?.question.end();
	}

	// Bytes of the answer were used: more may come.
	read(number: number, count: number): void {
		this.#requests.get(number)?.answer.read(count);
	}

	// Nobody wants the answer, or no more of it.
	forget(number: number): void {
		const request = this.#requests.get(number);
		if (!request) return;
		this.#remove(number);
		if (request.wasSent && this.#isWelcome) this.#first.push({ kind: 'forget', number });
	}

	ping(nonce: number): void {
		if (this.#isWelcome) this.#first.push({ kind: 'ping', nonce });
	}

	connect(): void {
		const places = [...this.#requests]
			.filter(([, request]) => request.wasSent)
			.map(([number, request]) => request.answer.place(number));
		this.#first = [{ kind: 'hello', session: this.#session, places }];
		this.#hasChannel = true;
		this.#isWelcome = false;
	}

	disconnect(): void {
		this.#first = [];
		this.#hasChannel = this.#isWelcome = false;
	}

	receive(bytes: Uint8Array): RequestEvent[] {
		const message = decode(bytes);
		if ((message.kind === 'welcome') === this.#isWelcome && message.kind !== 'refused') {
			throw new ProtocolError('a message that does not belong here');
		}
		switch (message.kind) {
			case 'welcome':
				return this.#welcome(message.isNew, message.highest, message.places);
			case 'data': {
				const { number, offset, data, isLast } = message;
				const request = this.#requests.get(number);
				if (!request) return []; // nobody wants it; it was under way
				const fresh = request.answer.take(offset, data, isLast);
				if (isLast) this.forget(number); // all of it is here
				return fresh.length || isLast ? [{ kind: 'arrived', number, data: fresh, isLast }] : [];
			}
			case 'allow':
				this.#requests.get(message.place.number)?.question.progress(message.place);
				return [];
			case 'failed':
				return this.#fail(message.number, message.why);
			case 'pong':
			case 'refused':
				return [message];
		}
	}

	transmit(): Uint8Array | null {
		if (!this.#hasChannel) return null;
		const first = this.#first.shift();
		if (first) return encode(first);
		if (!this.#isWelcome) return null; // what the node already has is not known yet
		for (let left = this.#turns.length; left > 0; left--) {
			const number = this.#turns.shift()!;
			this.#turns.push(number);
			const request = this.#requests.get(number)!;
			const message: FromPage | null = request.answer.isDue
				? { kind: 'allow', place: request.answer.place(number) }
				: request.question.next(number);
			if (message) {
				request.wasSent = true;
				return encode(message);
			}
		}
		return null;
	}

	#welcome(isNew: boolean, highest: number, places: Place[]): RequestEvent[] {
		const events: RequestEvent[] = [{ kind: 'welcomed' }];
		const theirs = new Map(places.map((place) => [place.number, place]));
		for (const [number, request] of [...this.#requests]) {
			const place = theirs.get(number);
			const mayHaveBegun = isNew ? this.#wasWelcome : number <= highest;
			if (place) request.question.resume(place);
			else if (request.wasSent && mayHaveBegun) events.push(...this.#fail(number, FORGOTTEN));
			else request.question.resume({ number, taken: 0, allowed: REQUEST_WINDOW }); // it never arrived
		}
		this.#turns = [...this.#requests.keys()]; // a node takes new requests in the order of their numbers
		this.#isWelcome = this.#wasWelcome = true;
		return events;
	}

	#fail(number: number, why: string): RequestEvent[] {
		if (!this.#requests.has(number)) return [];
		this.forget(number);
		return [{ kind: 'failed', number, why }];
	}

	#remove(number: number): void {
		this.#requests.delete(number);
		this.#turns.splice(this.#turns.indexOf(number), 1);
	}
}
