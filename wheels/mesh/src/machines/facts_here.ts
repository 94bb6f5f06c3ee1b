// What `meshd status` says of this node besides its machine and its models.
import { inBytes, inMemory, inNumber, inTime } from '../amounts.ts';
import type { Status } from '../status.ts';
import { texts } from '../texts.ts';

const t = texts.machines.facts;

/** Names and values; a value may be empty. */
export function factsHere(status: Status): [string, string][] {
	const { node, mesh, mdns, store } = status;
	return [
		[t.version, node.version],
		[t.up, `${inTime(node.uptime_s)}, ${inMemory(node.rss_bytes)}`],
		[t.listens, node.listen.join(', ')],
		[t.home, node.home],
		[t.mesh, mesh ? t.ofMesh(mesh.id.slice(0, 10), inNumber(mesh.members, 'member'), mesh.roles.join(', ')) : t.noMesh],
		[t.mdns, mdns?.state === 'silent' ? t.silent(mdns.why) : ''],
		[t.disk, disk(status)],
		[t.store, store && (store.limit || store.bytes) ? t.kept(inBytes(store.bytes), inBytes(store.limit)) : ''],
		[t.children, status.children.map((child) => [`${child.name}: ${child.state}`, child.reason].filter(Boolean).join(', ')).join('; ')]
	];
}

function disk({ storage }: Status): string {
	if (!storage) return '';
	const { free_bytes: free, cache_room_bytes: room, models } = storage;
	const parts = [
		free === null ? '' : t.free(inBytes(free)),
		room === null ? '' : t.room(inBytes(room)),
		models === null ? '' : `${inNumber(models, 'model')}, ${inBytes(storage.models_bytes ?? 0)}`
	];
	return parts.filter(Boolean).join('; ');
}
