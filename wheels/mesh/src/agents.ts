// Lines to paste for programs that use the API: agents.json, with the real address, model and key filled in.
import { quote } from './commands.ts';
import agents from './agents.json' with { type: 'json' };

export interface Agent {
	program: string;
	name: string;
	/** What to do with `text`, a file; both may be empty. */
	where: string;
	text: string;
	/** Lines for a shell. */
	shell: string;
	/** Whether meshd was tried with it (docs/agents.md). */
	tried: boolean;
}

export interface Filling {
	/** Without `/v1`. */
	url: string;
	model: string;
	key: string;
	context: number;
}

/** All programs, filled in. A model's name is quoted: it may be anything. */
export function filled(by: Filling): Agent[] {
	const inFile = (text: string) => fill(text, by, (value) => JSON.stringify(value).slice(1, -1));
	return (agents as Agent[]).map((agent) => ({
		...agent,
		text: inFile(agent.text),
		shell: fill(agent.shell, by, quote)
	}));
}

function fill(text: string, by: Filling, quoted: (value: string) => string): string {
	return text.replace(/\{(url|model|key|context)\}/g, (_, name: keyof Filling) => quoted(String(by[name]).replace(/\p{Cc}/gu, '?')));
}
