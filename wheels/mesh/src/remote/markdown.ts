// What a model writes, as a tree of blocks and words. marked reads it; HTML is made of nothing. HTML, pictures
// and links to what is no page stay as they were written.
import { Lexer, type MarkedToken, type Token, type Tokens } from 'marked';

export type Words =
	| { kind: 'text'; text: string }
	| { kind: 'code'; text: string }
	| { kind: 'strong'; inner: Words[] }
	| { kind: 'em'; inner: Words[] }
	| { kind: 'del'; inner: Words[] }
	| { kind: 'link'; href: string; host: string; inner: Words[] }
	| { kind: 'break' };

export interface Item {
	isDone: boolean | null; // null: no task
	inner: Block[];
}

export type Block =
	| { kind: 'paragraph'; inner: Words[] }
	| { kind: 'heading'; level: number; inner: Words[] }
	| { kind: 'code'; language: string; text: string }
	| { kind: 'list'; start: number | null; items: Item[] }
	| { kind: 'table'; head: Words[][]; rows: Words[][][] }
	| { kind: 'quote'; inner: Block[] }
	| { kind: 'rule' };

/** A block of the text, with the text it was read from. */
export interface Read {
	raw: string;
	block: Block;
}

// What is longer is shown as it was written: some of it would take time that grows with the square of its length.
const MOST_CHARS = 1 << 16;
const MOST_WORDS_CHARS = 4000; // of one paragraph, heading or cell
const MOST_DEPTH = 12; // of lists and quotes, of words within words
const LANGUAGE = /^[\w+#.-]{1,20}/;
const ENTITIES: Record<string, string> = { amp: '&', lt: '<', gt: '>', quot: '"', '#39': "'", nbsp: '\u00a0' };

class Reader extends Lexer {
	depth = 0;

	override blockTokens(src: string, tokens: any = [], lastParagraphClipped?: boolean): any {
		if (this.depth >= MOST_DEPTH) return asText(src, tokens);
		this.depth++;
		const found = super.blockTokens(src, tokens, lastParagraphClipped);
		this.depth--;
		return found;
	}

	override inlineTokens(src: string, tokens: Token[] = []): Token[] {
		return src.length > MOST_WORDS_CHARS ? asText(src, tokens) : super.inlineTokens(src, tokens);
	}
}

function asText(text: string, tokens: Token[]): Token[] {
	tokens.push({ type: 'text', raw: text, text });
	return tokens;
}

/** Read a text; blocks that are in `before` stay the same objects. */
export function read(text: string, before: readonly Read[] = []): Read[] {
	let tokens: Token[];
	try {
		tokens = text.length > MOST_CHARS ? asText(text, []) : new Reader({ gfm: true, breaks: true }).lex(text);
	} catch {
		tokens = asText(text, []);
	}
	return tokens.filter(isShown).map((token, at) => {
		const old = before[at];
		return old?.raw === token.raw ? old : { raw: token.raw, block: blockOf(token) };
	});
}

const isShown = (token: Token): boolean => token.type !== 'space';

const blocksOf = (tokens: Token[]): Block[] => tokens.filter(isShown).map(blockOf);

function blockOf(given: Token): Block {
	const token = given as MarkedToken;
	switch (token.type) {
		case 'heading':
			return { kind: 'heading', level: token.depth, inner: wordsOf(token.tokens) };
		case 'code':
			return { kind: 'code', language: LANGUAGE.exec(token.lang ?? '')?.[0] ?? '', text: token.text };
		case 'list':
			return { kind: 'list', start: token.ordered ? Number(token.start) : null, items: token.items.map(itemOf) };
		case 'table':
			return { kind: 'table', head: token.header.map(cell), rows: token.rows.map((row) => row.map(cell)) };
		case 'blockquote':
			return { kind: 'quote', inner: blocksOf(token.tokens) };
		case 'hr':
			return { kind: 'rule' };
		case 'paragraph':
		case 'text':
			return { kind: 'paragraph', inner: token.tokens ? wordsOf(token.tokens) : [plain(token.text)] };
		default:
			return { kind: 'paragraph', inner: [asWritten(token.raw)] };
	}
}

const cell = (of: Tokens.TableCell): Words[] => wordsOf(of.tokens);

function itemOf(item: Tokens.ListItem): Item {
	const rest = item.tokens.filter((token) => token.type !== 'checkbox');
	return { isDone: item.task ? item.checked === true : null, inner: blocksOf(rest) };
}

function wordsOf(tokens: Token[], depth = 0): Words[] {
	return tokens.filter((token) => token.type !== 'checkbox').map((token) => wordOf(token as MarkedToken, depth));
}

function wordOf(token: MarkedToken, depth: number): Words {
	if (depth >= MOST_DEPTH) return asWritten(token.raw);
	switch (token.type) {
		case 'strong':
		case 'em':
		case 'del':
			return { kind: token.type, inner: wordsOf(token.tokens, depth + 1) };
		case 'codespan':
			return { kind: 'code', text: token.text };
		case 'br':
			return { kind: 'break' };
		case 'link': {
			const to = target(token.href);
			const inner = wordsOf(token.tokens, depth + 1);
			return to ? { kind: 'link', href: to.href, host: token.text.includes(to.host) ? '' : to.host, inner } : asWritten(token.raw);
		}
		case 'escape':
			return asWritten(token.text);
		case 'text':
			return plain(token.text);
		default:
			return asWritten(token.raw);
	}
}

/** Where a link leads, if that is a page. */
function target(href: string): URL | null {
	const to = URL.canParse(href) ? new URL(href) : null;
	return to && ['http:', 'https:'].includes(to.protocol) && to.host ? to : null;
}

const asWritten = (text: string): Words => ({ kind: 'text', text });

/** Text in which the usual references to characters are these characters. */
const plain = (text: string): Words =>
	asWritten(text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name: string) => ENTITIES[name] ?? ''));
