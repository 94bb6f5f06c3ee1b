// An invite as `meshd invite --browser` prints it (meshd/identity/invite.py), and what a browser keeps of it.

import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";

import { concat, equal, fromBase32, MalformedError, utf8 } from "./bytes.ts";

const PREFIX = "meshd1";
const CHECKSUM_BYTES = 4;
const KEY_BYTES = 32;
const SECRET_BYTES = 16;
const MAX_CHARS = 4096;
const CRITICAL = 0x80;
const MESH = 0x81;
const INVITER = 0x82;
const SECRET = 0x83;
const EXPIRES = 0x84;
const RELAY = 6;
const INVISIBLE = /[\s\u00ad\u200b\u200c\u200d\u2060\ufeff]/gu;
const AROUND = /^["'`´‘’“”«»<>()[\]{}.,;:*_]+|["'`´‘’“”«»<>()[\]{}.,;:*_]+$/gu;

// What was pasted is no invite that can be used; the message says why, in words.
export class InviteError extends Error {}

// An invite and this browser's own key: together they are the credential, which a browser keeps.
export interface RemoteInvite {
  token: string;
  seed: Uint8Array; // 32 secret bytes: whoever comes with the same ones is the same browser
  mesh: Uint8Array;
  head: Uint8Array; // the node's key, by which it proves itself
  secret: Uint8Array;
  expiresAt: number; // unix seconds
  relays: string[]; // host:port
  lan: string[]; // host:port of the head's API, to be tried as well
}

// Reads a token. Throws InviteError.
export function readInvite(text: string, seed: Uint8Array, lan: string[] = []): RemoteInvite {
  const token = text.slice(0, MAX_CHARS).replace(INVISIBLE, "").replace(AROUND, "").toLowerCase();
  const fields = new Map<number, Uint8Array>();
  const relays: string[] = [];
  for (const [tag, value] of fieldsOf(payloadOf(token))) {
    if (tag === RELAY) {
      if (value.length > KEY_BYTES) relays.push(new TextDecoder().decode(value.subarray(KEY_BYTES)));
    } else if (tag >= CRITICAL && ![MESH, INVITER, SECRET, EXPIRES].includes(tag)) {
      throw new InviteError("this invite was made by a newer version of meshd");
    } else {
      fields.set(tag, value);
    }
  }
  const expiry = exact(fields, EXPIRES, 5);
  return {
    token,
    seed,
    mesh: exact(fields, MESH, KEY_BYTES),
    head: exact(fields, INVITER, KEY_BYTES),
    secret: exact(fields, SECRET, SECRET_BYTES),
    expiresAt: expiry.reduce((sum, byte) => sum * 256 + byte, 0),
    relays: relays.filter((place) => /^[\w.\-:[\]]+:\d{1,5}$/u.test(place)),
    lan,
  };
}

// Returns 32 random bytes for a browser that has none yet.
export function newSeed(): Uint8Array {
  return crypto.getRandomValues(new Uint8Array(KEY_BYTES));
}

export interface InviteKeys {
  id: Uint8Array; // 8 bytes, public
  key: Uint8Array; // 32 bytes
  box: Uint8Array; // 16 bytes
}

// Derives what a browser needs of an invite's secret (HKDF-SHA256, one block each).
export function keysOf(secret: Uint8Array): InviteKeys {
  const middle = hmac(sha256, utf8("meshd invite v1"), secret);
  const expand = (what: string, size: number): Uint8Array =>
    hmac(sha256, middle, concat(utf8(what), Uint8Array.of(1))).slice(0, size);
  return { id: expand("invite id", 8), key: expand("browser key", 32), box: expand("browser box", 16) };
}

function payloadOf(token: string): Uint8Array {
  if (!token.startsWith(PREFIX)) throw new InviteError(`an invite begins with ${PREFIX}`);
  let raw: Uint8Array;
  try {
    raw = fromBase32(token.slice(PREFIX.length));
  } catch (error) {
    if (error instanceof MalformedError) throw new InviteError(`the invite is damaged: ${error.message}`);
    throw error;
  }
  const size = raw.length >= 2 ? ((raw[0] as number) << 8) | (raw[1] as number) : -1;
  if (size !== raw.length - 2 - CHECKSUM_BYTES) throw new InviteError("the invite is cut off, or damaged");
  const payload = raw.subarray(2, 2 + size);
  const sum = sha256(concat(utf8(`${PREFIX}\0`), payload)).subarray(0, CHECKSUM_BYTES);
  if (!equal(sum, raw.subarray(2 + size))) throw new InviteError("at least one character of the invite is damaged");
  return payload;
}

function* fieldsOf(payload: Uint8Array): Generator<[number, Uint8Array]> {
  let at = 0;
  while (at < payload.length) {
    const tag = payload[at] as number;
    const size = payload[at + 1] ?? 256;
    if (at + 2 + size > payload.length) throw new InviteError("a field of the invite is cut off");
    yield [tag, payload.slice(at + 2, at + 2 + size)];
    at += 2 + size;
  }
}

function exact(fields: Map<number, Uint8Array>, tag: number, size: number): Uint8Array {
  const value = fields.get(tag);
  if (value?.length !== size) throw new InviteError("a part of the invite is missing");
  return value;
}
