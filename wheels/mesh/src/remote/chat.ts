// A conversation with a model: what is asked, and what the events of an answer say. Nothing here touches the page.
import { texts } from '../texts.ts';

export interface Answer {
	text: string;
	thought: string;
	error: string;
	finish: string;
	done: boolean;
	tokens: number;
	perSecond: number;
}

export interface Turn {
	question: string;
	answer: Answer;
	note: string; // how it ended
	isBad: boolean;
}

const MOST_TURNS = 100;
export const MOST_CHARS = 1 << 20; // of a conversation, of one answer

export function newTurn(question: string): Turn {
	const answer = { text: '', thought: '', error: '', finish: '', done: false, tokens: 0, perSecond: 0 };
	return { question, answer, note: '', isBad: false };
}

const asText = (value: unknown): string => (typeof value === 'string' ? value : '');
const asNumber = (value: unknown): number => (typeof value === 'number' && value > 0 ? value : 0);
const asObject = (value: unknown): Record<string, unknown> =>
	typeof value === 'object' && value !== null ? (value as Record<string, unknown>) : {};

// Add what one event says.
export function take(answer: Answer, data: string): void {
	if (data === '[DONE]') {
		answer.done = true;
		return;
	}
	let event: Record<string, unknown>;
	try {
		event = asObject(JSON.parse(data));
	} catch {
		return; // an event that broke off: the next one says why
	}
	if (event.error) answer.error = asText(asObject(event.error).message) || texts.remote.noReason;
	const choice = asObject(Array.isArray(event.choices) ? event.choices[0] : null);
	const delta = asObject(choice.delta);
	answer.text += asText(delta.content);
	answer.thought += asText(delta.reasoning_content);
	answer.finish = asText(choice.finish_reason) || answer.finish;
	const timings = asObject(event.timings);
	answer.tokens = asNumber(timings.predicted_n) || asNumber(asObject(event.usage).completion_tokens) || answer.tokens;
	answer.perSecond = asNumber(timings.predicted_per_second) || answer.perSecond;
}

// Say how an answer ended whose stream has ended, `seconds` after its first text.
export function end(turn: Turn, seconds: number): void {
	const { answer } = turn;
	turn.isBad = answer.error !== '' || !answer.done;
	if (answer.error) turn.note = texts.remote.endedWith(answer.error);
	else if (!answer.done) turn.note = texts.remote.cut;
	else {
		const perSecond = answer.perSecond || (seconds > 0 ? answer.tokens / seconds : 0);
		turn.note = [
			answer.finish === 'length' ? texts.remote.atLimit : '',
			answer.text ? '' : texts.remote.noAnswer,
			answer.tokens ? texts.remote.tokens(answer.tokens) : '',
			perSecond ? texts.remote.speed(perSecond) : ''
		]
			.filter(Boolean)
			.join(' · ');
	}
}

// What an answer with an error status says.
export function refusalIn(status: number, body: string): string {
	try {
		return asText(asObject(asObject(JSON.parse(body)).error).message).slice(0, 2000) || `HTTP ${status}`;
	} catch {
		return `HTTP ${status}`;
	}
}

// Whole turns only: templates of some models demand that user and assistant alternate.
export function messages(turns: Turn[], question: string): { role: string; content: string }[] {
	const whole = turns.filter((turn) => turn.answer.text);
	const earlier = whole.flatMap((turn) => [
		{ role: 'user', content: turn.question },
		{ role: 'assistant', content: turn.answer.text }
	]);
	return [...earlier, { role: 'user', content: question }];
}

// How many of the oldest turns are too many.
export function excess(turns: Turn[]): number {
	let chars = 0;
	for (let at = turns.length - 1; at >= 0; at--) {
		const { question, answer } = turns[at]!;
		chars += question.length + answer.text.length + answer.thought.length;
		if (chars > MOST_CHARS || turns.length - at > MOST_TURNS) return at + 1;
	}
	return 0;
}
