// What this page keeps of the invite that was given to it: with it a browser comes back as the same one.
import { newSeed, readInvite } from './invite.ts';
import type { RemoteInvite } from './invite.ts';

const NAME = 'meshd-invite';

interface Kept {
	token: string;
	seed: number[];
	lan: string[];
}

// Whether the address has an invite behind its #, perhaps in capitals, which it survives.
export function hasInvite(): boolean {
	return /^#meshd/i.test(location.hash);
}

// Returns the invite in the address, else the kept one; null if there is none. Throws InviteError. `mayReplace` is
// asked before another invite takes the place of the kept one: any page can link here with an invite of its own, to a
// node that would then read what its user writes.
export function givenInvite(mayReplace: () => boolean): RemoteInvite | null {
	const token = location.hash.slice(1);
	if (hasInvite()) {
		history.replaceState(null, '', location.pathname + location.search); // the address is seen by others
		const kept = keptCredential();
		if (kept === null || kept.token === readInvite(token, newSeed(), []).token || mayReplace()) return useInvite(token);
	}
	const kept = keptCredential();
	return kept && readInvite(kept.token, Uint8Array.from(kept.seed), kept.lan);
}

// Returns the invite of a token, and keeps it. The same token keeps its key. Throws InviteError.
export function useInvite(token: string): RemoteInvite {
	const kept = keptCredential();
	const lan = location.protocol === 'http:' ? [location.host] : [];
	const invite = readInvite(token, newSeed(), lan);
	const isSame = kept?.token === invite.token;
	const seed = isSame ? kept.seed : [...invite.seed];
	const known = isSame ? [...new Set([...lan, ...kept.lan])].slice(0, 4) : lan;
	keep({ token: invite.token, seed, lan: known });
	return { ...invite, seed: Uint8Array.from(seed), lan: known };
}

export function forgetInvite(): void {
	try {
		localStorage.removeItem(NAME);
	} catch {
		// a browser that keeps nothing
	}
}

// Whether the browser keeps anything: without it the invite is used up when the page is closed.
export function keepsInvite(): boolean {
	return keptCredential() !== null;
}

function keptCredential(): Kept | null {
	try {
		return JSON.parse(localStorage.getItem(NAME) ?? 'null') as Kept | null;
	} catch {
		return null;
	}
}

function keep(credential: Kept): void {
	try {
		localStorage.setItem(NAME, JSON.stringify(credential));
	} catch {
		// a browser that keeps nothing
	}
}
