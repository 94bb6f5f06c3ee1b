// Puts a module of this folder in the place of a package that upstream's code imports at once, though few visits
// need it. The modules themselves import the packages. What upstream imports otherwise now stays as it is.
import { resolve } from 'path';
import type { Plugin } from 'vite';

const MODULES: Record<string, string> = {
	'@modelcontextprotocol/sdk/client': 'mcp',
	'@modelcontextprotocol/sdk/client/sse.js': 'mcp',
	'@modelcontextprotocol/sdk/client/streamableHttp.js': 'mcp',
	'@modelcontextprotocol/sdk/client/websocket.js': 'mcp',
	'highlight.js': 'highlight',
	lowlight: 'grammars',
	'pdfjs-dist': 'pdf',
	'pdfjs-dist/build/pdf.worker.min.mjs?raw': 'pdf-worker',
	'rehype-highlight': 'code',
	'rehype-katex': 'formulas'
};
// The same for a package within another one, which only upstream's formulas use.
const WITHIN: Record<string, [string, string]> = {
	katex: ['/micromark-extension-math/', 'no-formulas']
};
const SOURCE = resolve('src');

export function lazy(): Plugin {
	const unused = new Set([...Object.keys(MODULES), ...Object.keys(WITHIN)]);

	return {
		apply: 'build',
		buildEnd(error) {
			if (this.environment.name !== 'client' || error || unused.size === 0) return;

			this.error(`upstream does not import ${[...unused].join(', ')} any more: see wheels/chat/lazy`);
		},
		enforce: 'pre',
		name: 'meshd:lazy',
		resolveId(id, importer) {
			const [folder, module] = WITHIN[id] ?? [SOURCE, MODULES[id]];

			if (!module || !importer?.includes(folder)) return null;

			if (this.environment.name === 'client') unused.delete(id);

			return resolve('lazy', `${module}.ts`);
		}
	};
}
