// JSON of the node. Its texts may be names that strangers chose.
// Characters that turn the direction of the text around them: a name with one could pass for another.
const TURNS = /\p{Bidi_Control}/gu;

/** Read JSON; characters that turn the direction of text are replaced. Throws SyntaxError. */
export function parsed(json: string): unknown {
	return JSON.parse(json, (_name, value: unknown) => (typeof value === 'string' ? value.replace(TURNS, '\ufffd') : value));
}
