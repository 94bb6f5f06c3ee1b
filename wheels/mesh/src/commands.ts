// The command line that an action equals: it is shown beside the action, and can be copied into a terminal.
import type { Fields } from './actions.ts';

const UNSAFE = /[\p{Cc}\p{Bidi_Control}\uFFFD]/u;
const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** Quote a word for a POSIX shell (2.2.2: within single quotes, every character is itself). */
export function quote(word: string): string {
	return PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

const text = (value: unknown): string => (typeof value === 'string' ? value : '');
const number = (value: unknown): number => (typeof value === 'number' ? value : 0);
const words = (value: unknown): string[] => (Array.isArray(value) ? value.map(text) : []);

/** An option; nothing for an empty value. A value that looks like an option is joined to its name. */
function option(name: string, value: string): string[] {
	if (value === '') return [];
	return value.startsWith('-') ? [`${name}=${value}`] : [name, value];
}

/** Words without a name; `--` before those that look like options. */
function plain(...given: string[]): string[] {
	return given.some((word) => word.startsWith('-')) ? ['--', ...given] : given;
}

/** Seconds as `24h`, `30m`, `7d` or `90s`. */
function duration(seconds: number): string {
	for (const [unit, size] of [['d', 86400], ['h', 3600], ['m', 60]] as const) {
		if (seconds % size === 0 && (size < 86400 || seconds > size)) return `${seconds / size}${unit}`;
	}
	return `${seconds}s`;
}

function plan(fields: Fields): string[] {
	const texts = ['workers', 'layers', 'tensor_split', 'device', 'memory', 'draft_model'];
	return [
		'plan',
		...option('--model', text(fields.model)),
		...option('--ctx-size', text(fields.ctx_size)),
		...option('--streams', number(fields.streams) ? `${number(fields.streams)}` : ''),
		...texts.flatMap((name) => option(`--${name.replace('_', '-')}`, text(fields[name])))
	];
}

function invite(fields: Fields): string[] {
	const browser = text(fields.browser);
	return [
		'invite',
		...option('--expires', duration(number(fields.expires_s))),
		...option('--uses', `${number(fields.uses)}`),
		// a browser has one role
		...(browser ? option('--browser', browser) : words(fields.roles).flatMap((role) => option('--role', role)))
	];
}

/** The nodes come last, as `--to` takes all words that follow, up to `--`. */
function expose(fields: Fields): string[] {
	const service = plain(text(fields.name), text(fields.target));
	const nodes = words(fields.to).flatMap((node) => option('--to', node));
	return service[0] === '--' ? ['expose', ...nodes, ...service] : ['expose', ...service, ...nodes];
}

function tunnelClose(fields: Fields): string[] {
	const listen = text(fields.listen);
	const given = listen ? [listen] : [text(fields.peer), text(fields.service)];
	return ['tunnel', 'close', ...plain(...given)];
}

// What has no command line (`load`, `unload`) is not in here, nor what no button of the page does alone.
const COMMANDS: Record<string, (fields: Fields) => string[]> = {
	accept: (fields) => ['accept', ...plain(text(fields.code))],
	ban_list: () => ['unban'],
	capacity: (fields) => ['capacity', ...(fields.again === true ? ['--again'] : [])],
	drain: () => ['drain'],
	expose,
	expose_list: () => ['expose', 'ls'],
	expose_remove: (fields) => ['expose', ...plain('rm', text(fields.name))],
	fits: () => ['model', 'ls', '--fits'],
	forget: (fields) => ['forget', ...plain(text(fields.peer))],
	invite,
	invite_list: () => ['invite', 'ls'],
	invite_revoke: (fields) => ['invite', 'revoke', ...plain(text(fields.id))],
	logs: (fields) => ['logs', ...option('--lines', `${number(fields.lines) || 100}`), ...plain(text(fields.log) || 'meshd')],
	model_remove: (fields) => ['model', 'rm', ...plain(text(fields.model))],
	// no action of the page, but shown as the next step
	model_verify: (fields) => ['model', 'verify', ...plain(text(fields.model))],
	model_download: (fields) => ['model', 'pull', ...plain(text(fields.model))],
	models: () => ['model', 'ls'],
	netcheck: () => ['netcheck'],
	pause: () => ['pause'],
	ping: (fields) => ['ping', '--count', '1', ...plain(text(fields.peer))],
	plan,
	pull: (fields) => [
		'model',
		'pull',
		...(fields.background === true ? ['--background'] : []),
		...option('--rate', number(fields.rate) ? `${number(fields.rate)}B` : ''),
		...plain(text(fields.name))
	],
	resume: () => ['resume'],
	revoke: (fields) => ['revoke', ...plain(text(fields.peer))],
	tunnel_close: tunnelClose,
	tunnel_open: (fields) => [
		'tunnel',
		'open',
		...option('--listen', text(fields.listen)),
		...plain(text(fields.peer), text(fields.service))
	],
	unban: (fields) => ['unban', ...plain(text(fields.id))],
	why: () => ['why']
};

/**
 * The command line of an action, quoted for a shell. Empty if no command does the same, and where a word has
 * control characters: pasted, these would be keys to a terminal, whatever quotes are around them, or show
 * another command than they run. Nor is there one with U+FFFD, which stands for bytes that are not text: it
 * would name something else.
 */
export function commandLine(name: string, fields: Fields = {}): string {
	const command = hasCommand(name) ? COMMANDS[name] : undefined;
	const line = command ? ['meshd', ...command(fields)] : [];
	return line.some((word) => UNSAFE.test(word)) ? '' : line.map(quote).join(' ');
}

/** Whether a command does the same, if its words can be shown. */
export function hasCommand(name: string): boolean {
	return Object.hasOwn(COMMANDS, name);
}

/** The actions that have a command line. */
export const commandNames: readonly string[] = Object.keys(COMMANDS);
