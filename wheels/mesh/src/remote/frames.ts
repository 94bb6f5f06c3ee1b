// The messages between this page and a node over a data channel: the other end is
// meshd/gateway/browser_frames.py, and both are tested with the same recorded messages.
// Numbers are big endian; the first byte is the kind.

import { texts } from '../texts.ts';

export const VERSION = 1;
export const MAX_MESSAGE_BYTES = 16 << 10;
export const SESSION_BYTES = 16;
export const MAX_HEAD_BYTES = 64 << 10;
export const MOST_REQUESTS = 8;

const PLACE_BYTES = 20;
const PIECE_BYTES = 14;
export const MAX_DATA_BYTES = MAX_MESSAGE_BYTES - PIECE_BYTES;

// How far the sender of this has received the stream of one request, and how far it may be sent.
export interface Place {
	number: number;
	taken: number;
	allowed: number;
}

export type FromPage =
	| { kind: 'hello'; session: Uint8Array; places: Place[] }
	| { kind: 'data'; number: number; offset: number; data: Uint8Array; isLast: boolean }
	| { kind: 'allow'; place: Place }
	| { kind: 'forget'; number: number }
	| { kind: 'ping'; nonce: number };

export type FromNode =
	| { kind: 'welcome'; isNew: boolean; highest: number; places: Place[] }
	| { kind: 'data'; number: number; offset: number; data: Uint8Array; isLast: boolean }
	| { kind: 'allow'; place: Place }
	| { kind: 'failed'; number: number; why: string }
	| { kind: 'pong'; nonce: number }
	| { kind: 'refused'; why: string };

const KINDS = {
	hello: 1,
	welcome: 2,
	data: 3,
	allow: 4,
	forget: 5,
	failed: 6,
	ping: 7,
	pong: 8,
	refused: 9,
} as const;

// What the node sent cannot be read, or breaks the rules: the channel is of no use.
export class ProtocolError extends Error {}

export function encode(message: FromPage): Uint8Array {
	switch (message.kind) {
		case 'hello': {
			const bytes = new Uint8Array(3 + SESSION_BYTES + message.places.length * PLACE_BYTES);
			bytes.set([KINDS.hello, VERSION]);
			bytes.set(message.session, 2);
			bytes[2 + SESSION_BYTES] = message.places.length;
			message.places.forEach((place, at) => writePlace(bytes, 3 + SESSION_BYTES + at * PLACE_BYTES, place));
			return bytes;
		}
		case 'data': {
			const bytes = new Uint8Array(PIECE_BYTES + message.data.length);
			const view = new DataView(bytes.buffer);
			view.setUint8(0, KINDS.data);
			view.setUint32(1, message.number);
			view.setBigUint64(5, BigInt(message.offset));
			view.setUint8(13, message.isLast ? 1 : 0);
			bytes.set(message.data, PIECE_BYTES);
			return bytes;
		}
		case 'allow': {
			const bytes = new Uint8Array(1 + PLACE_BYTES);
			bytes[0] = KINDS.allow;
			writePlace(bytes, 1, message.place);
			return bytes;
		}
		case 'forget': {
			const bytes = new Uint8Array(5);
			bytes[0] = KINDS.forget;
			new DataView(bytes.buffer).setUint32(1, message.number);
			return bytes;
		}
		case 'ping': {
			const bytes = new Uint8Array(9);
			bytes[0] = KINDS.ping;
			new DataView(bytes.buffer).setBigUint64(1, BigInt(message.nonce));
			return bytes;
		}
	}
}

export function decode(bytes: Uint8Array): FromNode {
	try {
		return read(bytes, new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength));
	} catch (error) {
		if (error instanceof ProtocolError) throw error;
		throw new ProtocolError('a message cannot be read'); // it is too short
	}
}

function read(bytes: Uint8Array, view: DataView): FromNode {
	if (bytes.length > MAX_MESSAGE_BYTES) throw new ProtocolError('a message is too long');
	switch (view.getUint8(0)) {
		case KINDS.welcome: {
			const version = view.getUint8(1);
			if (version !== VERSION) throw new ProtocolError(texts.remote.errors.version(version, VERSION));
			const places: Place[] = [];
			for (let at = 0; at < view.getUint8(7); at++) places.push(readPlace(view, 8 + at * PLACE_BYTES));
			return { kind: 'welcome', isNew: view.getUint8(2) !== 0, highest: view.getUint32(3), places };
		}
		case KINDS.data: {
			const number = view.getUint32(1);
			const isLast = view.getUint8(13) !== 0;
			return { kind: 'data', number, offset: readOffset(view, 5), data: bytes.slice(PIECE_BYTES), isLast };
		}
		case KINDS.allow:
			return { kind: 'allow', place: readPlace(view, 1) };
		case KINDS.failed:
			return { kind: 'failed', number: view.getUint32(1), why: new TextDecoder().decode(bytes.slice(5)) };
		case KINDS.pong:
			return { kind: 'pong', nonce: readOffset(view, 1) };
		case KINDS.refused:
			return { kind: 'refused', why: new TextDecoder().decode(bytes.slice(1)) };
		default:
			throw new ProtocolError('a message is of an unknown kind');
	}
}

function writePlace(bytes: Uint8Array, at: number, place: Place): void {
	const view = new DataView(bytes.buffer, bytes.byteOffset);
	view.setUint32(at, place.number);
	view.setBigUint64(at + 4, BigInt(place.taken));
	view.setBigUint64(at + 12, BigInt(place.allowed));
}

function readPlace(view: DataView, at: number): Place {
	return { number: view.getUint32(at), taken: readOffset(view, at + 4), allowed: readOffset(view, at + 12) };
}

function readOffset(view: DataView, at: number): number {
	const offset = Number(view.getBigUint64(at));
	if (offset > Number.MAX_SAFE_INTEGER) throw new ProtocolError('an offset is out of bounds');
	return offset;
}

// A head, which begins a stream, behind its length.
export function encodeHead(fields: unknown): Uint8Array {
	const text = new TextEncoder().encode(JSON.stringify(fields));
	if (text.length > MAX_HEAD_BYTES) throw new TypeError('the headers are too long');
	const bytes = new Uint8Array(4 + text.length);
	new DataView(bytes.buffer).setUint32(0, text.length);
	bytes.set(text, 4);
	return bytes;
}

export interface AnswerHead {
	status: number;
	headers: [string, string][];
}

// Collects an answer's stream until its head is whole.
export class HeadReader {
	#held = new Uint8Array(0);

	// Gives the head and what stands behind it; null if more must come.
	feed(data: Uint8Array): { head: AnswerHead; rest: Uint8Array } | null {
		this.#held = joined(this.#held, data);
		if (this.#held.length < 4) return null;
		const length = new DataView(this.#held.buffer).getUint32(0);
		if (length > MAX_HEAD_BYTES) throw new ProtocolError('a head is too long');
		if (this.#held.length < 4 + length) return null;
		const rest = this.#held.slice(4 + length);
		let head: AnswerHead;
		try {
			head = JSON.parse(new TextDecoder().decode(this.#held.slice(4, 4 + length))) as AnswerHead;
		} catch {
			throw new ProtocolError('a head cannot be read');
		}
		this.#held = new Uint8Array(0);
		return { head, rest };
	}
}

export function joined(one: Uint8Array, other: Uint8Array): Uint8Array<ArrayBuffer> {
	const both = new Uint8Array(one.length + other.length);
	both.set(one);
	both.set(other, one.length);
	return both;
}
