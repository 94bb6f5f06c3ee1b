// The state of another node, in one word and a sign for all views.
import type { PeerView } from './status.ts';
import { texts } from './texts.ts';

const t = texts.machines;

/** What the icon beside a state shows. */
export type Sign = 'good' | 'busy' | 'paused' | 'off' | 'bad' | 'warn' | 'info';

/** The class of a word that stands for a sign. */
export const TONES: Record<Sign, string> = {
	good: 'good',
	busy: 'warning',
	paused: 'warning',
	off: 'quiet',
	bad: 'error',
	warn: 'warning',
	info: 'quiet'
};

// as meshd/admin/health.py has them
const SUSPENDED_SECONDS = 10;
const AWAY_SECONDS = 600;

/** Whether it was connected since the node started, and so has told its native protocol. */
function isMet(peer: PeerView): boolean {
	return peer.native_protocol !== '';
}

/** Whether it is stopped, long gone, or was not met since the node started: it returns once it is started. */
export function isAway(peer: PeerView): boolean {
	const isGone = ['known', 'connecting', 'lost'].includes(peer.state) && !(peer.says_banned || peer.says_in_use);
	const isLong = (peer.state_s ?? 0) >= (isMet(peer) ? AWAY_SECONDS : SUSPENDED_SECONDS);
	return isGone && !peer.present && (peer.stopped !== '' || isLong);
}

/** An icon and a word. */
export function peerState(peer: PeerView): [Sign, string] {
	if (peer.says_banned) return ['bad', t.banned];
	if (peer.says_in_use) return ['bad', t.inUse];
	if (peer.state === 'suspended') return ['bad', t.suspended];
	if (peer.state === 'connected' || peer.present) {
		if (peer.fetching) return ['busy', t.fetching];
		if (peer.draining) return ['busy', t.draining];
		if (peer.paused) return ['paused', t.paused];
		return peer.state === 'connected' ? ['good', t.connected] : ['off', t.present];
	}
	if (peer.stopped) return ['off', t.stopped];
	if (isAway(peer)) return ['off', t.away];
	if (peer.state === 'connecting') return ['busy', t.connecting];
	return peer.state === 'lost' ? ['bad', t.lost] : ['off', t.known];
}

/** Why it has no link, if there is something to say. */
export function whyAway(peer: PeerView): string {
	return isAway(peer) && !isMet(peer) ? t.notMet : peer.stopped || peer.last_error;
}
