// An action that somebody started: it runs once at a time, and what came of it is shown beside its button.
import { act, Refusal, type Fields } from './actions.ts';
import { commandLine } from './commands.ts';
import { viewTexts } from './view_texts.ts';

export class Job<Result> {
	busy = $state(false);
	/** What came of it, in words; it is read out. */
	said = $state('');
	refusal = $state.raw<Refusal | null>(null);
	result = $state.raw<Result | null>(null);
	/** The command line of the last run, which is shown with its refusal. */
	command = $state('');
	#running: Promise<unknown> | null = null;
	#next: Promise<Result | null> | null = null;

	/** Do `name`; `say` words the result. Returns the result, or null if it was refused or is under way. */
	async run(name: string, fields: Fields = {}, say?: (result: Result) => string): Promise<Result | null> {
		if (this.busy) return null;
		const running = this.#do(name, fields, say);
		this.#running = running;
		return running;
	}

	/** Run `name` after the run that is under way, which may have read old data. `fields` is called when it begins. */
	runAfter(name: string, fields: () => Fields = () => ({}), say?: (result: Result) => string): Promise<Result | null> {
		if (!this.busy) return this.run(name, fields(), say);
		this.#next ??= this.#after(name, fields, say);
		return this.#next;
	}

	async #after(name: string, fields: () => Fields, say?: (result: Result) => string): Promise<Result | null> {
		while (this.busy) await this.#running;
		this.#next = null;
		return this.run(name, fields(), say);
	}

	async #do(name: string, fields: Fields, say?: (result: Result) => string): Promise<Result | null> {
		this.busy = true;
		this.said = '';
		this.refusal = null;
		this.command = commandLine(name, fields);
		try {
			const result = await act<Result>(name, fields);
			this.result = result;
			this.said = say ? say(result) : '';
			return result;
		} catch (error) {
			this.refusal =
				error instanceof Refusal ? error : new Refusal(viewTexts.odd, viewTexts.oddHint, 'page_failed');
			return null;
		} finally {
			this.busy = false;
		}
	}
}
