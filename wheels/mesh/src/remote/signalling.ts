// From an invite to a channel to its node: a sealed WebSocket to the node's API in the LAN or to a relay, over it
// the terms of a WebRTC connection; where no datagram passes, the sealed WebSocket itself.

import { texts } from "../texts.ts";
import { concat, Float, LengthParser, bytesIn, MalformedError, pack, textIn, toBase32, u32, unpack } from "./bytes.ts";
import type { Packable, Unpacked } from "./bytes.ts";
import { keysOf } from "./invite.ts";
import type { RemoteInvite } from "./invite.ts";
import { answerOf, candidateOf, midOf, packPlaces, placeOf, termsOf, unpackPlaces } from "./sdp.ts";
import type { Place } from "./sdp.ts";
import { introduce, SealDialler, SealError } from "./seal.ts";
import type { Seal } from "./seal.ts";

export interface Channel {
  readonly kind: "webrtc" | "relay" | "lan"; // what carries it
  readonly bufferedAmount: number; // bytes that are not sent yet
  onmessage: (message: Uint8Array) => void;
  onclose: () => void;
  send(message: Uint8Array): void; // at most 16 KiB
  close(): void;
}

// No channel: `refused` by the node, for good, or nothing of it was reached, perhaps for now.
export class ConnectError extends Error {
  readonly isRefused: boolean;
  readonly code: string;
  readonly hint: string;

  constructor(message: string, { isRefused = false, code = "unreachable", hint = "" } = {}) {
    super(message);
    this.isRefused = isRefused;
    this.code = code;
    this.hint = hint;
  }
}

const MAX_DATA_BYTES = 16 << 10;
const MAX_SEALED_BYTES = MAX_DATA_BYTES + 1024;
const SIGNALLING = 0;
const DATA = 1;
const REACH_MS = 8000;
const RELAY_AFTER_MS = 300; // that the LAN is ahead
const AGAIN_MS = [700, 3000];
const DIRECT_MS = 5000;
const OUTSIDE_MS = 2500; // for a STUN server to answer: if none does, no datagram passes
const BATCH_MS = 50; // addresses found within so much go out together
const MAX_PLACES = 16;

// Returns a channel to the node of the invite, at the latest after some seconds. Rejects with ConnectError.
export async function connect(invite: RemoteInvite, signal: AbortSignal): Promise<Channel> {
  const pipe = await reach(invite, signal);
  try {
    if (typeof RTCPeerConnection !== "undefined") {
      const channel = await direct(pipe, signal);
      if (channel !== null) {
        pipe.close();
        return channel;
      }
    }
    signal.throwIfAborted();
    return pipe.asChannel();
  } catch (error) {
    pipe.close();
    throw error;
  }
}

// --- the sealed pipe

async function reach(invite: RemoteInvite, signal: AbortSignal): Promise<SealedPipe> {
  const box = toBase32(keysOf(invite.secret).box);
  const ways = [
    ...invite.lan.map((place) => ({ kind: "lan" as const, url: `ws://${place}/mesh/signal`, wait: 0 })),
    ...invite.relays.map((place) => ({
      kind: "relay" as const,
      url: `ws://${place}/browser/${box}`,
      wait: invite.lan.length > 0 ? RELAY_AFTER_MS : 0,
    })),
  ];
  if (ways.length === 0) throw new ConnectError(texts.remote.errors.noWay, { isRefused: true }); // later there is no other way either
  const lost = new AbortController();
  const limit = AbortSignal.any([signal, lost.signal, AbortSignal.timeout(REACH_MS)]);
  try {
    return await Promise.any(ways.map(async ({ kind, url, wait }) => {
      await pause(wait, limit);
      return persistent(() => SealedPipe.open(kind, url, invite, limit), limit);
    }));
  } catch (error) {
    signal.throwIfAborted();
    const reasons: unknown[] = error instanceof AggregateError ? error.errors : [error];
    const refusal = reasons.find((reason) => reason instanceof ConnectError && reason.isRefused);
    throw refusal ?? reasons.find((reason) => reason instanceof ConnectError) ?? new ConnectError(texts.remote.errors.silence);
  } finally {
    lost.abort(); // those that come late are not wanted
  }
}

// A fresh invite's mailbox may be about to be opened: asks again, unless the node has said no.
async function persistent(open: () => Promise<SealedPipe>, limit: AbortSignal): Promise<SealedPipe> {
  for (const ms of AGAIN_MS) {
    try {
      return await open();
    } catch (error) {
      if (error instanceof ConnectError && error.isRefused) throw error;
      await pause(ms, limit);
    }
  }
  return open();
}

class SealedPipe {
  readonly stun: string[] = [];
  onsignal: (payload: Uint8Array) => void = () => undefined;
  #onend: () => void = () => undefined;
  #ondata: (message: Uint8Array) => void = () => undefined;
  readonly #kind: "relay" | "lan";
  readonly #socket: WebSocket;
  #seal: Seal | null = null;
  #isOver = false;

  private constructor(kind: "relay" | "lan", socket: WebSocket) {
    this.#kind = kind;
    this.#socket = socket;
  }

  // Opens a WebSocket, makes the seal, and is let in. Rejects with ConnectError.
  static open(kind: "relay" | "lan", url: string, invite: RemoteInvite, limit: AbortSignal): Promise<SealedPipe> {
    return new Promise((resolve, reject) => {
      limit.throwIfAborted();
      const socket = new WebSocket(url);
      socket.binaryType = "arraybuffer";
      const pipe = new SealedPipe(kind, socket);
      const dialler = new SealDialler(invite);
      const parser = new LengthParser(MAX_SEALED_BYTES);
      let isIn = false;
      const fail = (error: unknown): void => {
        pipe.close();
        const silence = texts.remote.errors.silent(new URL(url).host);
        if (error instanceof ConnectError) reject(error);
        else reject(new ConnectError(error instanceof SealError ? error.message : silence));
      };
      limit.addEventListener("abort", () => {
        if (!isIn) fail(limit.reason);
      });
      socket.onopen = () => pipe.#write(dialler.first);
      socket.onclose = () => {
        if (!isIn) fail(null);
        pipe.#end();
      };
      socket.onmessage = (event: MessageEvent<ArrayBuffer>) => {
        try {
          for (const message of parser.feed(new Uint8Array(event.data))) {
            if (pipe.#seal === null) {
              pipe.#seal = dialler.finish(message);
              pipe.signal({ type: "hello", ...introduce(invite.seed, pipe.#seal) });
            } else if (isIn) {
              pipe.#take(pipe.#seal.open(message));
            } else {
              pipe.#enter(pipe.#seal.open(message));
              isIn = true;
              resolve(pipe);
            }
          }
        } catch (error) {
          fail(error);
        }
      };
    });
  }

  get isLocal(): boolean {
    return this.#kind === "lan";
  }

  // Sends one message of signalling.
  signal(fields: Record<string, Packable>): void {
    this.#sendSealed(SIGNALLING, pack(fields));
  }

  close(): void {
    this.#socket.close();
    this.#end();
  }

  // Makes this pipe the channel.
  asChannel(): Channel {
    const channel: Channel = {
      kind: this.#kind,
      onmessage: () => undefined,
      onclose: () => undefined,
      bufferedAmount: 0,
      send: (message) => this.#sendSealed(DATA, message),
      close: () => this.close(),
    };
    Object.defineProperty(channel, "bufferedAmount", { get: () => this.#socket.bufferedAmount });
    this.#ondata = (message) => channel.onmessage(message);
    this.#onend = () => channel.onclose();
    if (this.#isOver) queueMicrotask(() => channel.onclose());
    return channel;
  }

  #enter(plain: Uint8Array): void {
    const fields = unpack(plain.subarray(1));
    if (fields.get("type") === "refused") {
      const hint = fields.get("hint");
      throw new ConnectError(textIn(fields, "text"), {
        isRefused: true,
        code: textIn(fields, "code"),
        hint: typeof hint === "string" ? hint : "",
      });
    }
    const stun = fields.get("stun");
    for (const place of Array.isArray(stun) ? stun : []) {
      if (typeof place === "string") this.stun.push(`stun:${place}`);
    }
  }

  #take(plain: Uint8Array): void {
    if (plain[0] === DATA) {
      this.#ondata(plain.subarray(1));
      return;
    }
    const fields = unpack(plain.subarray(1));
    if (fields.get("type") === "signal") this.onsignal(bytesIn(fields, "payload"));
  }

  #sendSealed(kind: number, message: Uint8Array): void {
    if (this.#seal !== null && !this.#isOver) this.#write(this.#seal.seal(concat(Uint8Array.of(kind), message)));
  }

  #write(message: Uint8Array): void {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(concat(u32(message.length), message));
  }

  #end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#onend();
  }
}

// --- WebRTC

// Returns a channel over WebRTC; null when none came about in time.
async function direct(pipe: SealedPipe, signal: AbortSignal): Promise<Channel | null> {
  const connection = new RTCPeerConnection({ iceServers: pipe.stun.length > 0 ? [{ urls: pipe.stun }] : [] });
  const stream = connection.createDataChannel("meshd", { negotiated: true, id: 0 });
  stream.binaryType = "arraybuffer";
  const channel = streamChannel(connection, stream);
  const blocked = new AbortController();
  const limit = AbortSignal.any([signal, blocked.signal, AbortSignal.timeout(DIRECT_MS)]);
  let isSeen = pipe.stun.length === 0 || pipe.isLocal;
  connection.addEventListener("icecandidate", ({ candidate }) => {
    if (candidate?.candidate.includes(" typ srflx")) isSeen = true;
  });
  const timer = setTimeout(() => {
    if (!isSeen) blocked.abort();
  }, OUTSIDE_MS);
  try {
    await new Promise<void>((resolve, reject) => {
      limit.addEventListener("abort", () => reject(new Error("no way was found in time")));
      connection.onconnectionstatechange = () => {
        if (connection.connectionState === "failed") reject(new Error("no way was found"));
      };
      stream.onopen = () => resolve();
      negotiate(connection, pipe).catch(reject);
    });
  } catch {
    connection.close();
    return null;
  } finally {
    clearTimeout(timer);
  }
  watchEnd(connection, stream, channel);
  return channel;
}

async function negotiate(connection: RTCPeerConnection, pipe: SealedPipe): Promise<void> {
  const attempt = crypto.getRandomValues(new Uint8Array(16));
  const offer = await connection.createOffer();
  const sdp = offer.sdp ?? "";
  const mid = midOf(sdp);
  const found = new Batch((places) => {
    pipe.signal(signalOf({ type: "more", attempt, candidates: packPlaces(places) }));
  });
  connection.onicecandidate = ({ candidate }) => {
    const place = candidate === null ? null : placeOf(candidate.candidate);
    if (place !== null) found.add(place);
  };
  let rank = 0;
  const add = (packed: Uint8Array): void => {
    for (const place of unpackPlaces(packed)) {
      connection.addIceCandidate({ candidate: candidateOf(place, rank++), sdpMid: mid }).catch(() => undefined);
    }
  };
  await connection.setLocalDescription(offer);
  const answered = answerTo(pipe, attempt);
  pipe.signal(
    signalOf({ type: "offer", attempt, seconds: new Float(DIRECT_MS / 1000), ...termsOf(sdp), candidates: new Uint8Array(0) }),
  );
  const { terms, later } = await answered;
  found.open();
  await connection.setRemoteDescription({
    type: "answer",
    sdp: answerOf(
      { user: textIn(terms, "user"), password: textIn(terms, "password"), fingerprint: bytesIn(terms, "fingerprint") },
      mid,
    ),
  });
  add(bytesIn(terms, "candidates"));
  later(add);
}

// Waits for the node's answer; addresses that came before it are kept for `later`.
function answerTo(
  pipe: SealedPipe,
  attempt: Uint8Array,
): Promise<{ terms: Map<string, Unpacked>; later: (add: (packed: Uint8Array) => void) => void }> {
  const early: Uint8Array[] = [];
  let add: ((packed: Uint8Array) => void) | null = null;
  const later = (to: (packed: Uint8Array) => void): void => {
    add = to;
    early.forEach(to);
  };
  return new Promise((resolve, reject) => {
    pipe.onsignal = (payload) => {
      const fields = unpack(payload);
      if (bytesIn(fields, "attempt").join() !== attempt.join()) return;
      if (fields.get("type") === "answer") resolve({ terms: fields, later });
      else if (fields.get("type") === "gone") reject(new MalformedError("the node gave up"));
      else if (fields.get("type") !== "more") return;
      else if (add === null) early.push(bytesIn(fields, "candidates"));
      else add(bytesIn(fields, "candidates"));
    };
  });
}

function signalOf(fields: Record<string, Packable>): Record<string, Packable> {
  return { type: "signal", payload: pack(fields) };
}

class Batch {
  #places: Place[] = [];
  #count = 0;
  #isOpen = false;
  readonly #send: (places: Place[]) => void;

  constructor(send: (places: Place[]) => void) {
    this.#send = send;
  }

  add(place: Place): void {
    if (this.#count++ >= MAX_PLACES) return;
    this.#places.push(place);
    if (this.#isOpen && this.#places.length === 1) setTimeout(() => this.#flush(), BATCH_MS);
  }

  // Sends what was found so far, and from now on what is found: before its answer, a node knows no attempt.
  open(): void {
    this.#isOpen = true;
    this.#flush();
  }

  #flush(): void {
    if (this.#places.length > 0) this.#send(this.#places);
    this.#places = [];
  }
}

// A data channel as one stream of bytes, with messages behind their lengths.
function streamChannel(connection: RTCPeerConnection, stream: RTCDataChannel): Channel {
  const parser = new LengthParser(MAX_DATA_BYTES);
  const channel: Channel = {
    kind: "webrtc",
    onmessage: () => undefined,
    onclose: () => undefined,
    bufferedAmount: 0,
    send: (message) => {
      if (stream.readyState === "open") stream.send(concat(u32(message.length), message));
    },
    close: () => {
      connection.close();
      channel.onclose();
    },
  };
  Object.defineProperty(channel, "bufferedAmount", { get: () => stream.bufferedAmount });
  stream.onmessage = (event: MessageEvent<ArrayBuffer | string>) => {
    if (typeof event.data === "string") channel.close(); // the node's farewell
    else for (const message of parser.feed(new Uint8Array(event.data))) channel.onmessage(message);
  };
  return channel;
}

function watchEnd(connection: RTCPeerConnection, stream: RTCDataChannel, channel: Channel): void {
  let isOver = false;
  const end = (): void => {
    if (isOver) return;
    isOver = true;
    connection.close();
    channel.onclose();
  };
  channel.close = end;
  stream.onclose = end;
  connection.onconnectionstatechange = () => {
    if (connection.connectionState === "failed" || connection.connectionState === "closed") end();
  };
}

function pause(ms: number, limit: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    limit.addEventListener("abort", () => reject(new ConnectError("not needed")));
    setTimeout(resolve, ms);
  });
}
