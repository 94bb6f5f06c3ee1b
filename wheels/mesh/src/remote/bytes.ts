// Bytes as meshd's nodes write them: base32, parts with lengths, and the little of msgpack that the
// messages of signalling need.

export const LETTERS = "abcdefghijklmnopqrstuvwxyz234567";

// Bytes that end too early, or are none of what they should be.
export class MalformedError extends Error {}

export function concat(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

export function utf8(text: string): Uint8Array {
  return new TextEncoder().encode(text);
}

export function u32(value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  new DataView(bytes.buffer).setUint32(0, value);
  return bytes;
}

// Parts with their lengths in front: different lists never give the same bytes.
export function joined(...parts: Uint8Array[]): Uint8Array {
  return concat(...parts.flatMap((part) => [u32(part.length), part]));
}

export function equal(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, at) => byte === other[at]);
}

export function toBase32(bytes: Uint8Array): string {
  let text = "";
  let bits = 0;
  let held = 0;
  for (const byte of bytes) {
    held = ((held << 8) | byte) & 0xfff;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      text += LETTERS[(held >> bits) & 31];
    }
  }
  return bits > 0 ? text + LETTERS[(held << (5 - bits)) & 31] : text;
}

export function fromBase32(text: string): Uint8Array {
  const bytes = new Uint8Array(Math.floor((text.length * 5) / 8));
  let bits = 0;
  let held = 0;
  let at = 0;
  for (const letter of text) {
    const value = LETTERS.indexOf(letter);
    if (value < 0) throw new MalformedError(`a character of no use: ${letter}`);
    held = ((held << 5) | value) & 0xfff;
    bits += 5;
    if (bits >= 8) {
      bits -= 8;
      bytes[at++] = (held >> bits) & 255;
    }
  }
  if ((held & ((1 << bits) - 1)) !== 0 || bits >= 5) throw new MalformedError("its last character is damaged");
  return bytes;
}

// Cuts a stream of bytes into messages, each behind its length (u32).
export class LengthParser {
  #held = new Uint8Array(0);
  readonly #limit: number;

  constructor(limit: number) {
    this.#limit = limit;
  }

  // Returns the messages that are whole now.
  feed(data: Uint8Array): Uint8Array[] {
    this.#held = this.#held.length === 0 ? new Uint8Array(data) : concat(this.#held, data);
    const found: Uint8Array[] = [];
    let at = 0;
    while (this.#held.length - at >= 4) {
      const size = new DataView(this.#held.buffer, at).getUint32(0);
      if (size > this.#limit) throw new MalformedError(`a message of ${size} bytes`);
      if (this.#held.length - at - 4 < size) break;
      found.push(this.#held.slice(at + 4, at + 4 + size));
      at += 4 + size;
    }
    this.#held = this.#held.slice(at);
    return found;
  }
}

// --- msgpack

// `Float` is a number that is to be written as one of 64 bits, whole or not.
export class Float {
  readonly value: number;

  constructor(value: number) {
    this.value = value;
  }
}

export type Packable = string | Uint8Array | Float;
export type Unpacked = null | boolean | number | string | Uint8Array | Unpacked[] | Map<string, Unpacked>;

const MAX_DEPTH = 8;

export function pack(fields: Record<string, Packable>): Uint8Array {
  const names = Object.keys(fields);
  const parts: Uint8Array[] = [Uint8Array.of(0x80 | names.length)];
  for (const name of names) parts.push(packed(name), packed(fields[name] as Packable));
  return concat(...parts);
}

function packed(value: Packable): Uint8Array {
  if (value instanceof Float) {
    const bytes = new Uint8Array(9);
    bytes[0] = 0xcb;
    new DataView(bytes.buffer).setFloat64(1, value.value);
    return bytes;
  }
  if (typeof value === "string") {
    const text = utf8(value);
    const head = text.length < 32 ? [0xa0 | text.length] : [0xda, text.length >> 8, text.length & 255];
    return concat(Uint8Array.from(head), text);
  }
  return concat(Uint8Array.of(0xc5, value.length >> 8, value.length & 255), value);
}

// Reads one map with text as keys.
export function unpack(bytes: Uint8Array): Map<string, Unpacked> {
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (!(value instanceof Map) || !reader.isAtEnd) throw new MalformedError("a message that is no map");
  return value;
}

class Reader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.#at === this.#bytes.length;
  }

  value(depth: number): Unpacked {
    if (depth > MAX_DEPTH) throw new MalformedError("a message that is nested too deeply");
    const head = this.#number(1);
    if (head < 0x80) return head;
    if (head < 0x90) return this.#map(head & 15, depth);
    if (head < 0xa0) return this.#list(head & 15, depth);
    if (head < 0xc0) return this.#text(head & 31);
    if (head >= 0xe0) return head - 256;
    switch (head) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.#take(this.#number(1 << (head - 0xc4)));
      case 0xcb: {
        const at = this.#skip(8);
        return this.#view.getFloat64(at);
      }
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#number(1 << (head - 0xcc));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#number(1 << (head - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#list(this.#number(2 << (head - 0xdc)), depth);
      case 0xde:
      case 0xdf:
        return this.#map(this.#number(2 << (head - 0xde)), depth);
      default:
        throw new MalformedError("a value of a kind that no message has");
    }
  }

  #skip(size: number): number {
    const at = this.#at;
    if (size > this.#bytes.length - at) throw new MalformedError("a message that is cut off");
    this.#at += size;
    return at;
  }

  #take(size: number): Uint8Array {
    const at = this.#skip(size);
    return this.#bytes.slice(at, at + size);
  }

  #number(size: number): number {
    return this.#take(size).reduce((sum, byte) => sum * 256 + byte, 0);
  }

  #text(size: number): string {
    return new TextDecoder("utf-8", { fatal: true }).decode(this.#take(size));
  }

  #list(count: number, depth: number): Unpacked[] {
    const items: Unpacked[] = [];
    for (let at = 0; at < count; at++) items.push(this.value(depth + 1));
    return items;
  }

  #map(count: number, depth: number): Map<string, Unpacked> {
    const fields = new Map<string, Unpacked>();
    for (let at = 0; at < count; at++) {
      const name = this.value(depth + 1);
      if (typeof name !== "string") throw new MalformedError("a field without a name");
      fields.set(name, this.value(depth + 1));
    }
    return fields;
  }
}

// Return a field of the kind that it must have.
export function bytesIn(fields: Map<string, Unpacked>, name: string): Uint8Array {
  const value = fields.get(name);
  if (!(value instanceof Uint8Array)) throw new MalformedError(`the field ${name} must be bytes`);
  return value;
}

export function textIn(fields: Map<string, Unpacked>, name: string): string {
  const value = fields.get(name);
  if (typeof value !== "string") throw new MalformedError(`the field ${name} must be text`);
  return value;
}
