// What `meshd netcheck` found, in the words of the command line (meshd/cli/doctor.py).
import { inTime } from './amounts.ts';
import type { NatView, NetcheckReply, PortMappingView } from './status.ts';
import { viewTexts } from './view_texts.ts';

const t = viewTexts.network;

/** Names and words of the lines, in the order of the command line. */
export function netcheckLines(reply: NetcheckReply): [name: string, words: string][] {
	const lines: [string, string][] = [
		[t.udp, reply.udp],
		[t.tcp, reply.tcp.replace('only_443', t.only443)],
		[t.nat, reply.nat.kind + ports(reply.nat)],
		[t.tcpNat, reply.tcp_nat.kind + ports(reply.tcp_nat)],
		[t.v4, reply.public_v4 ?? t.unknown],
		[t.ipv6, reply.ipv6 === 'yes' ? t.yes(reply.public_v6) : reply.ipv6],
		[t.mapping, mapping(reply.port_mapping)],
		[t.hairpin, reply.hairpin],
		[t.direct, reply.direct],
		[t.asked, reply.servers.join(', ') || t.nobody]
	];
	if (reply.daemon && reply.age_s >= 60) lines.push([t.checked, viewTexts.ago(inTime(reply.age_s))]);
	return lines;
}

function ports(nat: NatView): string {
	if (['unknown', 'none'].includes(nat.mapping) || nat.ports === 'unknown') return '';
	if (nat.ports === 'counting') return t.countingPorts(nat.step);
	return ({ preserved: t.keptPorts, random: t.lostPorts } as Record<string, string>)[nat.ports] ?? '';
}

function mapping(router: PortMappingView): string {
	const by = router.language ? t.by(router.language) : '';
	switch (router.state) {
		case 'mapped': {
			const sure = router.verified === null ? '' : router.verified ? t.verified : t.notReached;
			return `${router.mappings.join(', ') || router.external}${by}${sure}`;
		}
		case 'offered':
			return t.offered(router.gateway ?? '', by, router.external ? t.outer(router.external) : '');
		case 'off':
			return t.off;
		case 'asking':
			return t.askingRouter;
		default:
			return router.why ? t.noneWhy(router.why) : t.none;
	}
}
