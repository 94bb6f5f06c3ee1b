// An invite as `meshd invite --browser` prints it (meshd/identity/invite.py), and what a browser keeps of it.

import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";

import { inNumber } from "../amounts.ts";
import { texts } from "../texts.ts";
import { concat, equal, fromBase32, LETTERS, MalformedError, utf8 } from "./bytes.ts";

const why = texts.remote.invites;
const STEM = "meshd";
const PREFIX = "meshd1";
const LENGTH_BYTES = 2;
const LENGTH_DIGITS = 4; // that hold the length
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
  for (const [tag, value] of fieldsOf(payloadOf(token, [...text].length))) {
    if (tag === RELAY) {
      if (value.length > KEY_BYTES) relays.push(new TextDecoder().decode(value.subarray(KEY_BYTES)));
    } else if (tag >= CRITICAL && ![MESH, INVITER, SECRET, EXPIRES].includes(tag)) {
      throw wrong(why.newer);
    } else {
      if (fields.has(tag)) throw wrong(why.twice);
      fields.set(tag, value);
    }
  }
  return {
    token,
    seed,
    mesh: exact(fields, MESH, KEY_BYTES, "mesh"),
    head: exact(fields, INVITER, KEY_BYTES, "inviter"),
    secret: exact(fields, SECRET, SECRET_BYTES, "secret"),
    expiresAt: exact(fields, EXPIRES, 5, "expiry").reduce((sum, byte) => sum * 256 + byte, 0),
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

// Returns the payload of what was pasted, `length` characters; errors are those of the command line.
function payloadOf(token: string, length: number): Uint8Array {
  if (token.startsWith("meshdroot")) throw wrong(why.backup);
  if (length > MAX_CHARS) throw wrong(why.tooLong(length));
  if (!token) throw wrong(why.empty);
  if (!token.startsWith(STEM)) throw wrong(why.other(PREFIX));
  if (token.length < PREFIX.length) throw wrong(why.cutAfter(token));
  if (!token.startsWith(PREFIX)) {
    throw wrong(/\d/.test(token.charAt(STEM.length)) ? why.newer : why.begins(token.slice(0, PREFIX.length), PREFIX));
  }
  const digits = token.slice(PREFIX.length);
  const place = [...digits].findIndex((letter) => !LETTERS.includes(letter));
  if (place >= 0) throw wrong(why.letter(PREFIX.length + place + 1, [...digits][place] as string));
  const raw = rawOf(digits);
  const payload = raw.subarray(LENGTH_BYTES, raw.length - CHECKSUM_BYTES);
  const sum = sha256(concat(utf8(`${PREFIX}\0`), payload)).subarray(0, CHECKSUM_BYTES);
  if (!equal(sum, raw.subarray(raw.length - CHECKSUM_BYTES))) throw wrong(why.checksum);
  return payload;
}

// Returns the bytes of all digits, of which the first say how many there have to be.
function rawOf(digits: string): Uint8Array {
  if (digits.length < LENGTH_DIGITS) throw wrong(why.beginning);
  const begin = [...digits.slice(0, LENGTH_DIGITS)].reduce((bits, letter) => (bits << 5) | LETTERS.indexOf(letter), 0);
  const size = begin >> (5 * LENGTH_DIGITS - 8 * LENGTH_BYTES);
  const wanted = Math.ceil((8 * (LENGTH_BYTES + size + CHECKSUM_BYTES)) / 5);
  if (wanted > MAX_CHARS) throw wrong(why.first);
  if (digits.length < wanted) throw wrong(why.missing(inNumber(wanted - digits.length, "character")));
  if (digits.length > wanted) throw wrong(why.extra(inNumber(digits.length - wanted, "character")));
  try {
    return fromBase32(digits);
  } catch (error) {
    throw error instanceof MalformedError ? wrong(why.last) : error;
  }
}

function wrong(problem: string): InviteError {
  return new InviteError(why.unreadable(problem));
}

function* fieldsOf(payload: Uint8Array): Generator<[number, Uint8Array]> {
  let at = 0;
  while (at < payload.length) {
    const tag = payload[at] as number;
    const size = payload[at + 1] ?? 256;
    if (at + 2 + size > payload.length) throw wrong(why.fieldCut);
    yield [tag, payload.slice(at + 2, at + 2 + size)];
    at += 2 + size;
  }
}

function exact(fields: Map<number, Uint8Array>, tag: number, size: number, what: string): Uint8Array {
  const value = fields.get(tag);
  if (value?.length !== size) throw wrong(why.lacks(what));
  return value;
}
