// Between the browser's SDP (RFC 8866, 8839, 8841) and the few facts that meshd's nodes exchange instead: ICE
// user and password, the fingerprint of the certificate, addresses (meshd/wire/signal.py, address.py).

import { concat, MalformedError } from "./bytes.ts";

export interface Terms {
  user: string;
  password: string;
  fingerprint: Uint8Array;
}

export interface Place {
  host: string;
  port: number;
  kind: PlaceKind;
}

const KINDS = ["host", "srflx", "mapped", "relay"] as const;
export type PlaceKind = (typeof KINDS)[number];

// Reads the terms of the one data section in an offer of this browser.
export function termsOf(sdp: string): Terms {
  const value = (name: string): string => {
    const found = new RegExp(`^a=${name}:(.*)$`, "mu").exec(sdp)?.[1]?.trim();
    if (found === undefined) throw new MalformedError(`this browser's offer has no ${name}`);
    return found;
  };
  const digits = /^sha-256 ([\dA-F:]+)$/iu.exec(value("fingerprint"))?.[1];
  if (digits === undefined) throw new MalformedError("this browser's certificate has another kind of fingerprint");
  const fingerprint = Uint8Array.from(digits.split(":"), (pair) => parseInt(pair, 16));
  return { user: value("ice-ufrag"), password: value("ice-pwd"), fingerprint };
}

// Writes the answer of a node, which is the DTLS server, as the browser reads it. `mid` is the offer's.
export function answerOf(terms: Terms, mid: string): string {
  const pairs = Array.from(terms.fingerprint, (byte) => byte.toString(16).padStart(2, "0").toUpperCase());
  const lines = [
    "v=0",
    "o=- 1 1 IN IP4 0.0.0.0",
    "s=-",
    "t=0 0",
    `a=group:BUNDLE ${mid}`,
    "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    "c=IN IP4 0.0.0.0",
    `a=mid:${mid}`,
    `a=ice-ufrag:${letters(terms.user)}`,
    `a=ice-pwd:${letters(terms.password)}`,
    "a=ice-options:trickle",
    `a=fingerprint:sha-256 ${pairs.join(":")}`,
    "a=setup:passive",
    "a=sctp-port:5000",
    "a=max-message-size:65536",
  ];
  return `${lines.join("\r\n")}\r\n`;
}

export function midOf(sdp: string): string {
  return /^a=mid:([\w-]+)\s*$/mu.exec(sdp)?.[1] ?? "0";
}

// Reads a candidate of this browser; null for one of no use to others: of TCP, or with a name that only mDNS knows.
export function placeOf(candidate: string): Place | null {
  const parts = candidate.replace(/^candidate:/u, "").split(" ");
  const [, , protocol, , host, port, , kind] = parts;
  if (protocol?.toLowerCase() !== "udp" || host === undefined || addressBytes(host) === null) return null;
  const number = Number(port);
  if (!(number >= 1 && number <= 65535) || (kind !== "host" && kind !== "srflx")) return null;
  return { host, port: number, kind };
}

// Writes a node's place as a candidate; the first ones are best.
export function candidateOf(place: Place, rank: number): string {
  const priority = ((place.kind === "host" ? 126 : 100) << 24) | ((65535 - (rank & 255)) << 8) | 255;
  const kind = place.kind === "host" ? "typ host" : `typ srflx raddr 0.0.0.0 rport 9`;
  return `candidate:${rank + 1} 1 udp ${priority} ${place.host} ${place.port} ${kind}`;
}

export function packPlaces(places: Place[]): Uint8Array {
  return concat(
    ...places.flatMap(({ host, port, kind }) => {
      const address = addressBytes(host);
      if (address === null) return [];
      const flags = (address.length === 16 ? 1 : 0) | 2 | (KINDS.indexOf(kind) << 2);
      return [Uint8Array.of(flags), address, Uint8Array.of(port >> 8, port & 255)];
    }),
  );
}

export function unpackPlaces(packed: Uint8Array): Place[] {
  const places: Place[] = [];
  let at = 0;
  while (at < packed.length) {
    const flags = packed[at] as number;
    const size = flags & 1 ? 16 : 4;
    const end = at + 3 + size;
    if (end > packed.length) throw new MalformedError("an address is cut off");
    const address = packed.subarray(at + 1, at + 1 + size);
    const port = ((packed[end - 2] as number) << 8) | (packed[end - 1] as number);
    const kind = KINDS[(flags >> 2) & 3] as PlaceKind;
    if (flags & 2 && kind !== "relay" && port > 0) places.push({ host: addressText(address), port, kind });
    at = end;
  }
  return places;
}

// Returns 4 or 16 bytes; null for anything but an address.
export function addressBytes(host: string): Uint8Array | null {
  if (/^\d+(\.\d+){3}$/u.test(host)) {
    const bytes = host.split(".").map(Number);
    return bytes.every((byte) => byte < 256) ? Uint8Array.from(bytes) : null;
  }
  if (!host.includes(":")) return null;
  const halves = host.split("::");
  const words = (text: string): string[] => (text === "" ? [] : text.split(":"));
  const front = words(halves[0] ?? "");
  const back = words(halves[1] ?? "");
  const missing = 8 - front.length - back.length;
  if (halves.length > 2 || (halves.length === 2 ? missing < 1 : missing !== 0)) return null;
  const all = [...front, ...Array<string>(halves.length === 2 ? missing : 0).fill("0"), ...back];
  if (!all.every((word) => /^[\da-f]{1,4}$/iu.test(word))) return null;
  return Uint8Array.from(all.flatMap((word) => [parseInt(word, 16) >> 8, parseInt(word, 16) & 255]));
}

function addressText(address: Uint8Array): string {
  if (address.length === 4) return address.join(".");
  const words: string[] = [];
  for (let at = 0; at < 16; at += 2) {
    words.push((((address[at] as number) << 8) | (address[at + 1] as number)).toString(16));
  }
  return words.join(":");
}

// A node is believed to be who it is, not to write lines of SDP.
function letters(text: string): string {
  if (!/^[A-Za-z\d+/]{4,256}$/u.test(text)) throw new MalformedError("the node's terms are malformed");
  return text;
}
