// The browser's side of the seal: Noise_NNpsk0_25519_ChaChaPoly_SHA256, and the signatures of both ends over
// it. The other side is meshd/identity/browser_seal.py, which says why.

import { chacha20poly1305 } from "@noble/ciphers/chacha.js";
import { ed25519, x25519 } from "@noble/curves/ed25519.js";
import { hmac } from "@noble/hashes/hmac.js";
import { sha256 } from "@noble/hashes/sha2.js";

import { texts } from "../texts.ts";
import { concat, joined, utf8 } from "./bytes.ts";
import { keysOf } from "./invite.ts";
import type { RemoteInvite } from "./invite.ts";

const VERSION = 1;
const KEY_BYTES = 32;
const PROTOCOL = utf8("Noise_NNpsk0_25519_ChaChaPoly_SHA256");
const NOTHING = new Uint8Array(0);

// The other side is not the node of the invite, or what it sent was changed on its way.
export class SealError extends Error {}

class Cipher {
  readonly #key: Uint8Array;
  #count = 0n;

  constructor(key: Uint8Array) {
    this.#key = key;
  }

  seal(plain: Uint8Array, associated: Uint8Array = NOTHING): Uint8Array {
    return chacha20poly1305(this.#key, this.#nonce(), associated).encrypt(plain);
  }

  open(sealed: Uint8Array, associated: Uint8Array = NOTHING): Uint8Array {
    try {
      return chacha20poly1305(this.#key, this.#nonce(), associated).decrypt(sealed);
    } catch {
      throw new SealError(texts.remote.errors.changed);
    }
  }

  #nonce(): Uint8Array {
    const nonce = new Uint8Array(12);
    new DataView(nonce.buffer).setBigUint64(4, this.#count++, true);
    return nonce;
  }
}

export class Seal {
  readonly binding: Uint8Array;
  readonly #ours: Cipher;
  readonly #theirs: Cipher;

  constructor(ours: Cipher, theirs: Cipher, binding: Uint8Array) {
    this.#ours = ours;
    this.#theirs = theirs;
    this.binding = binding;
  }

  seal(plain: Uint8Array): Uint8Array {
    return this.#ours.seal(plain);
  }

  open(sealed: Uint8Array): Uint8Array {
    return this.#theirs.open(sealed);
  }
}

// One handshake: send `first`, then `finish` with the answer.
export class SealDialler {
  readonly first: Uint8Array;
  readonly #head: Uint8Array;
  readonly #ephemeral: Uint8Array;
  #hash: Uint8Array;
  #chaining: Uint8Array;
  #cipher: Cipher;

  constructor(invite: RemoteInvite, ephemeral = crypto.getRandomValues(new Uint8Array(KEY_BYTES))) {
    const keys = keysOf(invite.secret);
    this.#head = invite.head;
    this.#ephemeral = ephemeral;
    this.#hash = this.#chaining = sha256(PROTOCOL);
    this.#mixHash(joined(utf8("meshd browser"), Uint8Array.of(VERSION), keys.id, invite.head));
    const [chaining, mixed, key] = this.#expand(keys.key, 3);
    this.#chaining = chaining;
    this.#mixHash(mixed);
    this.#cipher = new Cipher(key);
    const shown = x25519.getPublicKey(ephemeral);
    this.#mixEphemeral(shown);
    this.first = concat(Uint8Array.of(VERSION), keys.id, shown, this.#seal(NOTHING));
  }

  // Returns the seal. Throws SealError unless the node of the invite has answered.
  finish(second: Uint8Array): Seal {
    const shown = second.subarray(0, KEY_BYTES);
    if (second.length < KEY_BYTES) throw new SealError(texts.remote.errors.cutOff);
    this.#mixEphemeral(shown);
    try {
      this.#mixKey(x25519.getSharedSecret(this.#ephemeral, shown));
    } catch {
      throw new SealError(texts.remote.errors.badKey);
    }
    const signed = this.#hash;
    const signature = this.#open(second.subarray(KEY_BYTES));
    if (!verify(this.#head, "meshd browser listener v1", signed, signature)) {
      throw new SealError(texts.remote.errors.otherNode);
    }
    const [ours, theirs] = this.#expand(NOTHING, 2);
    return new Seal(new Cipher(ours), new Cipher(theirs), this.#hash);
  }

  #seal(plain: Uint8Array): Uint8Array {
    const sealed = this.#cipher.seal(plain, this.#hash);
    this.#mixHash(sealed);
    return sealed;
  }

  #open(sealed: Uint8Array): Uint8Array {
    const plain = this.#cipher.open(sealed, this.#hash);
    this.#mixHash(sealed);
    return plain;
  }

  #mixEphemeral(shown: Uint8Array): void {
    this.#mixHash(shown);
    this.#mixKey(shown);
  }

  #mixKey(secret: Uint8Array): void {
    const [chaining, key] = this.#expand(secret, 2);
    this.#chaining = chaining;
    this.#cipher = new Cipher(key);
  }

  #mixHash(data: Uint8Array): void {
    this.#hash = sha256(concat(this.#hash, data));
  }

  #expand(secret: Uint8Array, count: 2 | 3): [Uint8Array, Uint8Array, Uint8Array] {
    const middle = hmac(sha256, this.#chaining, secret);
    const one = hmac(sha256, middle, Uint8Array.of(1));
    const two = hmac(sha256, middle, concat(one, Uint8Array.of(2)));
    const three = count === 3 ? hmac(sha256, middle, concat(two, Uint8Array.of(3))) : NOTHING;
    return [one, two, three];
  }
}

function verify(key: Uint8Array, context: string, data: Uint8Array, signature: Uint8Array): boolean {
  try {
    return ed25519.verify(signature, joined(utf8(context), data), key, { zip215: false });
  } catch {
    return false;
  }
}

// Returns this browser's key and its signature over a seal.
export function introduce(seed: Uint8Array, seal: Seal): { key: Uint8Array; signature: Uint8Array } {
  const signed = joined(utf8("meshd browser v1"), seal.binding);
  return { key: ed25519.getPublicKey(seed), signature: ed25519.sign(signed, seed) };
}
