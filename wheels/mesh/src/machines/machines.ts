// The machines of the mesh as this node sees them, ready to be shown.
import { inMilliseconds, inPercent } from '../amounts.ts';
import type { LinkView, ModelStatus, PeerView, Status } from '../status.ts';
import { peerState, whyAway, type Sign } from '../peer_states.ts';
import { texts } from '../texts.ts';

const t = texts.machines;

/** How a line is drawn. */
export type LineKind = 'direct' | 'punched' | 'relayed' | 'none';

/** The layers of a model that a machine has, and how far their load is. */
export interface Part {
	model: string;
	layers: number;
	bytes: number;
	/** By tensors: the part of each layer; `layers` are how many it would be worth. */
	share?: number;
}

export interface Machine {
	id: string;
	/** With the begin of its id where another machine has the same name. */
	name: string;
	role: string;
	isHere: boolean;
	sign: Sign;
	/** The state in a word or two. */
	word: string;
	/** Why, in meshd's words; may be empty. */
	reason: string;
	line: LineKind;
	/** `LAN`, `punched`, `relayed`…; empty without a path. */
	path: string;
	link: LinkView | null;
	/** How splits, loads and capacities call it. */
	labels: string[];
	parts: Part[];
	/** From 0 to 1 while its weights load. */
	loading: number | null;
	peer: PeerView | null;
}

/** Return the models that this node runs or will run. */
export function modelsOf(status: Status): ModelStatus[] {
	if (status.models.length) return status.models;
	return status.model ? [status.model] : [];
}

/** Return all machines: this node first, then its peers, connected ones first. */
export function machinesOf(status: Status): Machine[] {
	const names = namesOf(status);
	const models = modelsOf(status);
	const peers = status.peers.map((peer) => machineOf(peer, names.get(peer.id) ?? peer.name, models, labelsOf(peer, status)));
	return [here(status, names, models), ...peers.sort((a, b) => rank(a) - rank(b))];
}

function partsOf(models: ModelStatus[], labels: string[]): Part[] {
	return models.flatMap((model) => {
		const own = model.split.filter((part) => labels.includes(part.node));
		const layers = own.reduce((sum, part) => sum + part.layers, 0);
		const all = model.split.reduce((sum, part) => sum + part.layers, 0);
		const share = model.by_tensors ? { share: layers / all } : {};
		return layers ? [{ model: model.name, layers, bytes: own.reduce((sum, part) => sum + part.bytes, 0), ...share }] : [];
	});
}

function namesOf(status: Status): Map<string, string> {
	const all = [status.node, ...status.peers];
	const isShared = (name: string) => all.filter((node) => node.name === name).length > 1;
	return new Map(
		all.map(({ id, name }) => [id, !name || isShared(name) ? `${name} (${id.slice(0, 10)})`.trim() : name])
	);
}

/**
 * How the head may have called a node when it loaded, as `labels` of meshd/identity/naming.py does: with the id
 * where this node or another worker has the name. Others may have come since, so a bare name is this node's, or
 * that of the one worker that has it.
 */
function labelsOf({ id, name }: { id: string; name: string }, status: Status): string[] {
	const isOthers = (peer: PeerView) => peer.id !== id && peer.name === name && peer.role === 'worker';
	const isBare = id === status.node.id || (name !== status.node.name && !status.peers.some(isOthers));
	return [...(isBare ? [name] : []), `${name} (${id.slice(0, 10)})`, `${name} (${id})`];
}

function rank(machine: Machine): number {
	return machine.peer?.state === 'connected' ? 0 : machine.sign === 'off' ? 2 : 1;
}

function here(status: Status, names: Map<string, string>, models: ModelStatus[]): Machine {
	const { node } = status;
	const [sign, word, reason] = nodeState(status);
	const labels = labelsOf(node, status);
	return {
		id: node.id,
		name: names.get(node.id) ?? node.name,
		role: t.roles[node.role] ?? node.role,
		isHere: true,
		sign,
		word,
		reason,
		line: 'none',
		path: '',
		link: null,
		labels,
		parts: partsOf(models, labels),
		loading: null,
		peer: null
	};
}

/** Return the state of this node: an icon, words, and the reason. */
export function nodeState(status: Status): [Sign, string, string] {
	const { node, fetching, lent, api } = status;
	const model = status.models.length ? foremost(status.models) : status.model;
	if (node.draining) return ['busy', t.draining, t.drainingHere(node.draining.models, node.draining.requests)];
	if (node.paused) return ['paused', t.paused, t.pausedHere];
	if (fetching) return ['busy', t.fetching, ''];
	if (model) return [MODEL_SIGNS[model.state], t.modelStates[model.state], model.reason];
	if (lent.length) return ['good', t.lends, ''];
	if (api) return [api.ready ? 'good' : 'busy', api.ready ? t.ready : t.notReady, api.reason];
	return ['good', t.running, ''];
}

/** Of several models, the one whose state says most of the node; null if none is loaded, which is no fault. */
function foremost(models: ModelStatus[]): ModelStatus | null {
	const order: ModelStatus['state'][] = ['loading', 'fetching', 'ready', 'waiting', 'degraded', 'failed'];
	return order.map((state) => models.find((model) => model.state === state)).find((model) => model) ?? null;
}

export const MODEL_SIGNS: Record<ModelStatus['state'], Sign> = {
	fetching: 'busy',
	waiting: 'busy',
	loading: 'busy',
	ready: 'good',
	degraded: 'bad',
	failed: 'bad',
	unloaded: 'off'
};

function machineOf(peer: PeerView, name: string, models: ModelStatus[], labels: string[]): Machine {
	const [sign, word] = peerState(peer);
	const weights = models.filter((model) => model.state === 'loading').flatMap((model) => model.workers);
	const own = weights.find((worker) => labels.includes(worker.node) && worker.total_bytes > 0);
	return {
		id: peer.id,
		name,
		role: t.roles[peer.role] ?? peer.role,
		isHere: false,
		sign,
		word,
		reason: peer.says_banned || peer.says_in_use || peer.upgrade || (peer.link ? '' : whyAway(peer)),
		line: lineOf(peer.link),
		path: peer.link ? t.paths[peer.link.path] : '',
		link: peer.link,
		labels,
		parts: partsOf(models, labels),
		loading: own ? Math.min(1, (own.local_bytes + own.sent_bytes) / own.total_bytes) : null,
		peer
	};
}

function lineOf(link: LinkView | null): LineKind {
	if (!link) return 'none';
	return link.path === 'relayed' || link.path === 'punched' ? link.path : 'direct';
}

/** `12 layers`, or `50% of each layer`. */
export function partText(part: Part): string {
	return part.share === undefined ? t.layers(part.layers) : t.ofEach(inPercent(part.share));
}

/** `12 layers of smollm2` for each model. */
export function partsText(parts: Part[]): string {
	return parts.map((part) => t.of(partText(part), part.model)).join(', ');
}

/** `punched, 34.0 ms`; empty without a path. */
export function pathText(machine: Machine): string {
	if (!machine.link) return '';
	const rtt = machine.link.rtt_ms;
	return rtt === null ? machine.path : `${machine.path}, ${inMilliseconds(rtt)}`;
}
