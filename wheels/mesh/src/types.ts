// The state that the node streams. `Status` and what is in it are those of `meshd status --json`.
import type { Status } from './status.ts';

export type { Status } from './status.ts';

export interface RunningRequest {
	id: number;
	model: string;
	phase: 'waiting' | 'prompt' | 'answering';
	seconds: number;
	tokens: number;
	tok_s: number | null;
	key: string;
	note: string;
}

export interface MeshEvent {
	at: number;
	level: 'info' | 'warning' | 'error';
	text: string;
}

/** Buckets of `step_s` seconds, the oldest first; the last one ends at `until`. */
export interface History {
	step_s: number;
	until: number;
	tok_s: number[];
	requests: number[];
}

export interface State {
	status: Status;
	requests: RunningRequest[];
	history: History;
	events: MeshEvent[];
	can: string[];
}
