// What the page asks of the node: POST /mesh/do/NAME, as `meshd` asks the control socket.
import { parsed } from './parsed.ts';
import { texts } from './texts.ts';

export type Fields = Record<string, unknown>;

/** A refusal, worded as the command line words it. `code` `session` and `fresh_link` ask for `meshd ui`. */
export class Refusal extends Error {
	readonly hint: string;
	readonly code: string;

	constructor(message: string, hint: string, code: string) {
		super(message);
		this.hint = hint;
		this.code = code;
	}
}

const KEY = 'meshd-api-key';

/** Headers of each request: a node that listens beyond loopback wants a key as well. */
export function keyHeaders(): Record<string, string> {
	const key = sessionStorage.getItem(KEY);
	return key ? { Authorization: `Bearer ${key}` } : {};
}

/** Keep the key until the tab is closed. */
export function keepKey(key: string): void {
	sessionStorage.setItem(KEY, key);
}

/** Do `name` with `fields` and return the result. Throws Refusal. */
export async function act<Result>(name: string, fields: Fields = {}, signal?: AbortSignal): Promise<Result> {
	const headers = { 'Content-Type': 'application/json' };
	const response = await post(`/mesh/do/${name}`, { headers, body: JSON.stringify(fields), signal: signal ?? null });
	return (parsed(await response.text()) as { result: Result }).result;
}

/** End the session of this browser, in all its windows; the key goes with it. Throws Refusal. */
export async function endSession(): Promise<void> {
	try {
		await post('/mesh/end', {});
	} catch (error) {
		if (!(error instanceof Refusal && error.code === 'session')) throw error; // it had ended already
	}
	sessionStorage.removeItem(KEY);
}

async function post(path: string, init: { headers?: Record<string, string>; body?: string; signal?: AbortSignal | null }): Promise<Response> {
	let response: Response;
	try {
		response = await fetch(path, { ...init, method: 'POST', headers: { ...init.headers, ...keyHeaders() } });
	} catch (error) {
		if (init.signal?.aborted) throw error;
		throw new Refusal(texts.errors.unreachable, texts.errors.unreachableHint, 'unreachable');
	}
	if (!response.ok) throw await refusal(response);
	return response;
}

/** Read the error of a response that is not OK. */
export async function refusal(response: Response): Promise<Refusal> {
	try {
		const { error } = parsed(await response.text()) as { error: Partial<Record<'message' | 'hint' | 'code', string>> };
		return new Refusal(error.message ?? texts.errors.unknown, error.hint ?? '', error.code ?? 'failed');
	} catch {
		return new Refusal(`${texts.errors.unknown} (${response.status})`, '', 'failed');
	}
}
