// Every text of the page, by view. What nodes say (reasons, hints, warnings) comes worded from meshd.
import type { LinkState } from './remote/link.ts';

export const texts = {
	views: {
		machines: 'Machines',
		models: 'Models',
		plan: 'Plan',
		network: 'Network',
		invite: 'Invite',
		agents: 'Agents',
		logs: 'Logs'
	},
	app: {
		skip: 'Skip to content',
		views: 'Views',
		chat: 'Chat',
		connecting: 'Connecting to the node…',
		waiting: 'connecting',
		opening: 'Opening…',
		outdated: 'This view could not be loaded. Reload the page: the node may have been upgraded or restarted.',
		away: 'no answer',
		stale: (seconds: number) => `The node has not answered for ${seconds} s. This is its last known state.`,
		session: 'Open this page with a one-time link',
		sessionHint: 'To get one, run this on the machine where meshd runs, as the same user:',
		refused: 'That link was already used, or is more than a minute old. Get a new one:',
		end: 'End session',
		ended: 'The session has ended',
		endedHint: 'To use this page again, run this on the machine where meshd runs, as the same user:',
		key: 'This node needs an API key',
		keyLabel: 'API key',
		keySend: 'Use this key'
	},
	machines: {
		title: (count: number) => (count === 1 ? 'One machine' : `${count} machines`),
		picture: (count: number) => `${count} machines and the paths between them`,
		legend: 'Kinds of paths',
		table: 'The machines, and what is known about each',
		here: 'this node', // which may be another machine than that of the browser
		alone: 'No other machine yet: invite one.',
		inviteHint: (node: string) => `On ${node}, run`,
		inviteHere: 'Or make an invite here',
		attention: 'Needs attention',
		events: 'Recent events',
		allEvents: 'All events and the log',
		noEvents: 'No events since this node started.',
		severities: { info: 'Note', warning: 'Warning', error: 'Error' },
		roles: { serve: 'head', worker: 'worker', client: 'client' } as Record<string, string>,
		columns: {
			name: 'Machine',
			state: 'State',
			path: 'Path',
			now: 'Now',
			part: 'Model',
			memory: 'Memory'
		},
		// states
		connected: 'connected',
		connecting: 'connecting',
		suspended: 'interrupted',
		lost: 'lost',
		known: 'not connected',
		away: 'away',
		notMet: 'not connected since this node started',
		present: 'running, not connected',
		stopped: 'stopped',
		paused: 'paused',
		draining: 'draining',
		drainingHere: (models: number, requests: number) =>
			models
				? `${models} model${models === 1 ? ' still uses' : 's still use'} this node until the running answers end.`
				: `${requests} request${requests === 1 ? '' : 's'} still under way.`,
		pausedHere: 'This node lends nothing until you run `meshd resume`.',
		fetching: 'fetching a model',
		banned: 'has banned this node',
		inUse: 'identity in use elsewhere',
		lends: 'lending',
		running: 'running',
		ready: 'ready',
		notReady: 'not ready',
		loads: 'loading',
		modelStates: {
			fetching: 'fetching',
			waiting: 'waiting',
			loading: 'loading',
			ready: 'ready',
			degraded: 'degraded',
			failed: 'failed',
			unloaded: 'not loaded'
		},
		// paths
		paths: {
			loopback: 'same machine',
			lan: 'LAN',
			public: 'direct',
			mapped: 'mapped port',
			punched: 'punched',
			relayed: 'relayed'
		},
		lines: { direct: 'direct', punched: 'direct, through a NAT', relayed: 'relayed by another machine' },
		sent: (rate: string) => `↑ ${rate}/s`,
		received: (rate: string) => `↓ ${rate}/s`,
		capable: (rate: string) => `up to ${rate}/s`,
		way: (kind: string, path: string, remote: string) => `${path}, ${kind.toUpperCase()}, ${remote}`,
		moved: (sent: string, received: string) => `${sent} sent, ${received} received`,
		// what they have
		layers: (count: number) => `${count} layer${count === 1 ? '' : 's'}`,
		ofEach: (share: string) => `${share} of each layer`,
		of: (part: string, model: string) => `${part} of ${model}`,
		parts: (count: number) => `parts of ${count} models`,
		free: (device: string, free: string, total: string) => `${device} ${free} of ${total} free`,
		ask: 'Check memory on all machines',
		asking: 'Checking…',
		askingLong: 'The first measurement of a machine takes up to a minute.',
		lending: 'Memory lent to others',
		lent: (head: string, model: string, bytes: string, state: string) => `${bytes} to ${head} for ${model}: ${state}`,
		lentStates: { standby: 'on standby', loading: 'loading', loaded: 'loaded' },
		facts: {
			id: 'ID',
			version: 'meshd version',
			since: 'State',
			parts: 'Holds',
			path: 'Path',
			capable: 'Highest rate seen',
			moved: 'Transferred on this path',
			notDirect: 'Why not direct',
			standby: 'Standby paths',
			resumes: 'Resumed on a new path',
			faults: 'Faults in the last hour',
			error: 'Last error',
			// of this node alone
			up: 'Uptime, memory',
			listens: 'Listens on',
			home: 'State directory',
			mesh: 'Mesh',
			ofMesh: (id: string, members: string, roles: string) => `${id}, ${members}${roles ? `; this node may: ${roles}` : ''}`,
			noMesh: 'none',
			mdns: 'mDNS',
			silent: (why: string) => `off: ${why}`,
			disk: 'Disk',
			free: (bytes: string) => `${bytes} free`,
			room: (bytes: string) => `room for ${bytes} of weights`,
			store: 'Downloaded weights',
			kept: (bytes: string, limit: string) => `${bytes} of ${limit}`,
			children: 'Child processes'
		}
	},
	model: {
		title: (count: number) => (count > 1 ? 'Models' : 'Model'),
		none: 'No model yet: choose one in',
		loading: 'loading',
		draining: (answers: number, workers: string) =>
			`Draining: ${answers} answer${answers === 1 ? ' still runs' : 's still run'}, then the model is loaded again without ${workers}.`,
		progressOf: (name: string) => `Loading ${name}`,
		arrived: (done: string, total: string) => `${done} of ${total}`,
		byNetwork: (sent: string, missing: string) => `${sent} of ${missing} over the network`,
		split: (layers: number, machines: number) =>
			machines === 1 ? `${layers} layers on one machine` : `${layers} layers split over ${machines} machines`,
		together: (machines: number) => `each layer on all of ${machines} machines`,
		table: (name: string) => `The split of ${name}`,
		columns: {
			node: 'Machine',
			device: 'Device',
			layers: 'Layers',
			ofEach: 'Of each layer',
			weights: 'Weights',
			memory: 'Memory',
			push: 'Activations arrive'
		},
		memory: (free: string, total: string) => `${free} of ${total} free`,
		direct: 'directly from the previous machine',
		throughHead: (why: string) => `through the head${why ? `: ${why}` : ''}`,
		speed: (measured: number | null, predicted: number | null) =>
			measured === null
				? `${predicted?.toFixed(1)} tokens/s predicted`
				: `${measured.toFixed(1)} tokens/s measured${predicted === null ? '' : ` (${predicted.toFixed(1)} predicted)`}`,
		answers: (slots: number, tokens: number, shared: boolean) =>
			slots === 1
				? `1 request at a time, ${tokens} tokens`
				: `${slots} requests at once${shared ? ` that share ${tokens} tokens` : `, ${tokens} tokens each`}`,
		loaded: (seconds: number) => `loaded in ${seconds.toFixed(1)} s`,
		weights: (local: string, network: string) => `weights: ${local} from files, ${network} over the network`,
		estimated: (nodes: string) => `the split is an estimate: ${nodes} not measured yet`,
		standby: (node: string, bytes: string) => `${node} is on standby with ${bytes} of weights`,
		noStandby: (node: string) => `${node} is not on standby yet`,
		tooFew: 'Waiting for more workers.',
		fallback: (name: string) => `Running the fallback model: ${name}`,
		request: 'request',
		waiting: 'waiting'
	},
	fetching: {
		progress: 'Progress of fetching the model',
		of: (done: string, total: string) => `${done} of ${total}`,
		left: (time: string) => `${time} left`,
		from: (node: string, bytes: string) => `${bytes} from ${node}`,
		noMore: (problem: string) => `stopped sending: ${problem}`
	},
	requests: {
		title: 'Requests',
		none: 'No requests right now.',
		total: (requests: number, tokens: number, running: number, waiting: number) =>
			`${running} running, ${waiting} waiting; ${requests} since the node started, ${tokens} tokens`,
		number: (id: number) => `#${id}`,
		phases: { waiting: 'waiting', prompt: 'reading the prompt', answering: 'answering' },
		columns: {
			id: 'Request',
			model: 'Model',
			phase: 'Phase',
			seconds: 'Time',
			tokens: 'Tokens',
			rate: 'Tokens/s',
			key: 'Key'
		}
	},
	history: {
		title: 'Tokens per second',
		none: (span: string) => `No tokens in the last ${span}.`,
		words: (span: string, last: string, most: string, when: string, total: number) =>
			`${last} now, peak ${most} (${when}); about ${total} tokens in the last ${span}.`
	},
	errors: {
		unreachable: 'The node does not answer.',
		unreachableHint: 'Check with `meshd status` whether it is running.',
		unknown: 'The node refused this and gave no reason.'
	},
	copy: { copy: 'Copy' },
	remote: {
		views: { chat: 'Chat', machines: 'Machines' },
		title: 'Reach your node from anywhere',
		intro: 'On the node that serves the model, run `meshd invite --browser NAME`, and paste the invite here.',
		invite: 'Invite',
		use: 'Connect',
		forget: 'Forget this invite',
		replace: 'This link contains a different invite from the one saved here. Replace the saved one?',
		notKept: 'This browser does not save the invite. After you close this page, you need a new one.',
		link: (state: LinkState): string => {
			switch (state.kind) {
				case 'connecting':
					return state.why ? `Connecting… (${state.why})` : 'Connecting…';
				case 'connected': {
					const way = { webrtc: 'directly', lan: 'over the local network', relay: 'through a relay' }[state.way];
					return state.milliseconds === null ? `Connected ${way}` : `Connected ${way}, ${state.milliseconds} ms`;
				}
				case 'reconnecting':
					return state.why ? `Reconnecting… (${state.why})` : 'Reconnecting…';
				case 'refused':
					return `Not connected: ${state.why}`;
			}
		},
		closed: 'the connection is closed',
		// what an invite lacks, as `meshd` says it
		invites: {
			unreadable: (why: string) => `cannot read the invite: ${why}`,
			backup: "this is the backup of a mesh's root key, which must stay secret",
			tooLong: (length: number) => `it has ${length} characters, far too many`,
			empty: 'it is empty',
			other: (prefix: string) => `it does not begin with \`${prefix}\``,
			cutAfter: (word: string) => `it is cut off after \`${word}\``,
			begins: (word: string, prefix: string) => `it begins with \`${word}\`, must be \`${prefix}\``,
			newer: 'it was made by a newer version of meshd',
			letter: (place: number, letter: string) => `character ${place}, \`${letter}\`, is not allowed`,
			beginning: 'it is truncated: only its beginning is there',
			first: 'its first characters are damaged',
			missing: (characters: string) => `it is truncated (${characters} missing), or a character of its beginning is damaged`,
			extra: (characters: string) => `it has ${characters} too many, or a character of its beginning is damaged`,
			last: 'its last character is damaged',
			checksum: 'the checksum does not match, so at least one character is damaged',
			twice: 'a field occurs twice',
			fieldCut: 'a field in it is cut off',
			lacks: (what: string) => `its ${what} is missing or has the wrong length`
		},
		errors: {
			changed: 'a message was altered, or encrypted with another key',
			cutOff: 'the answer is cut off',
			badKey: 'the answer contains an unusable key',
			otherNode: 'the node that answered is not the one that made the invite',
			noWay: 'the invite names no relay, so a saved page cannot find the node. In the node’s network, scan the QR code of `meshd invite --browser NAME`; to connect from elsewhere, start the node with `--relay`, and make a new invite',
			silence: 'nothing answered',
			silent: (place: string) => `${place} does not answer`,
			headCut: 'the answer ended within its headers',
			forgotten: 'the node no longer knows this request: the node restarted, or this page was offline too long',
			version: (theirs: number, ours: number) => `the node speaks version ${theirs} of the protocol, this page version ${ours}: get the page from the node again`
		},
		model: 'Model',
		question: 'Question',
		send: 'Send',
		stop: 'Stop',
		stopped: 'Stopped.',
		waiting: 'Waiting for the model…',
		answering: 'Answering…',
		thought: 'Reasoning',
		conversation: 'Conversation',
		you: 'You',
		code: (language: string) => (language ? `Code, ${language}` : 'Code'),
		table: 'Table',
		task: (isDone: boolean) => (isDone ? 'done' : 'to do'),
		cut: 'The answer was cut off before it was complete.',
		endedWith: (why: string) => `The answer ended with an error: ${why}`,
		noReason: 'no reason given',
		noAnswer: 'The model gave no answer.',
		atLimit: 'Cut off at the token limit.',
		tooLong: 'it is too long for this page',
		tokens: (count: number) => `${count} tokens`,
		speed: (perSecond: number) => `${perSecond.toFixed(1)} tokens/s`
	}
};
